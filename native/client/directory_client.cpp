#include "client/directory_client.hpp"

#include <algorithm>
#include <cstring>

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;

constexpr size_t kConnectionsPerMaster = 8;
// While others are left to try, one master gets its share of the time, but not less than this.
constexpr int64_t kAttemptMsMin = 50;

bool changes_state(Op op) { return op == Op::kPlace || op == Op::kOpenNamespace || op == Op::kBumpNamespace; }

// Another master may do better.
bool try_elsewhere(Status status) { return status == Status::kNotLeader || status == Status::kUnavailable; }

void write_fingerprints(wire::Writer& body, const std::vector<Fingerprint>& fingerprints) {
  static_assert(sizeof(Fingerprint) == kFingerprintBytes, "fingerprints are sent as they lie");
  body.raw(fingerprints.data(), fingerprints.size() * kFingerprintBytes);
}

void read_u32s(wire::Reader& reader, size_t count, std::vector<uint32_t>* out) {
  out->resize(count);
  std::memcpy(out->data(), reader.bytes(count * sizeof(uint32_t), "entries"), count * sizeof(uint32_t));
}

void read_namespace(wire::Reader reader, NamespaceId* ns, uint32_t* epoch) {
  std::memcpy(ns->data(), reader.bytes(ns->size(), "ns"), ns->size());
  *epoch = reader.u32("epoch");
}

}  // namespace

DirectoryClient::Master::Master(PeerAddress address, const Options& options, ClientCounters& counters,
                                uint64_t seed)
    : pool(std::move(address), options.hello, kAnyPeer, kConnectionsPerMaster, options.connect_timeout_ms,
           counters),
      breaker(options.breaker.backoff_ms_min, options.breaker.backoff_ms_max, seed) {}

DirectoryClient::DirectoryClient(std::vector<PeerAddress> masters, const Options& options,
                                 ClientCounters& counters)
    : counters_(counters) {
  const auto seed = static_cast<uint64_t>(Deadline::Clock::now().time_since_epoch().count());
  for (PeerAddress& address : masters)
    masters_.push_back(
        std::make_unique<Master>(std::move(address), options, counters, seed + masters_.size()));
}

NetStatus DirectoryClient::exchange(Master& master, Op op, const wire::Writer& body, size_t fields_hint_bytes,
                                    const Deadline& deadline, const ReadReply& read, Status* status,
                                    std::string* refusal) {
  const auto began = Deadline::Clock::now();
  ConnectionPool::Lease lease;
  NetStatus net = master.pool.acquire(deadline, &lease);
  if (net != NetStatus::kOk) return net;
  uint32_t id = 0;
  FrameReply reply;
  net = lease->send_request(op, body.data(), body.size(), 0, deadline, &id);
  if (net == NetStatus::kOk) net = lease->receive_reply(op, id, fields_hint_bytes, deadline, &reply);
  if (net == NetStatus::kOk) {
    try {
      if (reply.status == Status::kOk) read(reply);
    } catch (const wire::WireError&) {
      net = NetStatus::kProtocol;
    }
  }
  if (net != NetStatus::kOk) {
    if (tells_of_peer(net, deadline, began)) counters_.troubles.failed_somehow(master.pool.subject(), net);
    return net;
  }
  if (try_elsewhere(reply.status))
    *refusal = reply.text;
  else if (reply.status == Status::kBadRequest || reply.status == Status::kInternal)
    counters_.troubles.failed(master.pool.subject(), Trouble::kRefused, reply.text);
  else
    counters_.troubles.works(master.pool.subject());
  *status = reply.status > Status::kWrongPeer ? Status::kInternal : reply.status;
  map_epoch_seen_.store(reply.map_epoch, std::memory_order_relaxed);
  lease.keep();
  return NetStatus::kOk;
}

Status DirectoryClient::call(Op op, const wire::Writer& body, size_t fields_hint_bytes,
                             const Deadline& deadline, const ReadReply& read) {
  std::atomic<size_t>& last_good = changes_state(op) ? last_leader_ : last_reader_;
  const size_t first = last_good.load(std::memory_order_relaxed);
  Status outcome = Status::kUnavailable;
  std::string refusal;  // of the last master that answered and does not serve
  for (size_t i = 0; i < masters_.size(); ++i) {
    const size_t index = (first + i) % masters_.size();
    Master& master = *masters_[index];
    if (deadline.expired()) return Status::kTimeout;
    const auto began = Deadline::Clock::now();
    const CircuitBreaker::Ticket ticket = master.breaker.admit(began);
    if (ticket.verdict == CircuitBreaker::Verdict::kRefused) {
      counters_.add(Counter::kBreakerRefusals);
      continue;
    }
    const auto left = static_cast<int64_t>(masters_.size() - i);
    Deadline attempt =
        left == 1 ? deadline : deadline.within_ms(std::max(deadline.left_ms() / left, kAttemptMsMin));
    if (ticket.verdict == CircuitBreaker::Verdict::kProbe) attempt = attempt.with_stall_ms(kProbeStallMs);
    Status status = Status::kInternal;
    NetStatus net;
    try {
      net = exchange(master, op, body, fields_hint_bytes, attempt, read, &status, &refusal);
    } catch (...) {
      master.breaker.cancel(ticket, Deadline::Clock::now());
      throw;
    }
    if (net == NetStatus::kOk) {
      master.breaker.success(ticket);
      if (!try_elsewhere(status)) {
        last_good.store(index, std::memory_order_relaxed);
        counters_.troubles.works("masters");
        return status;
      }
      outcome = Status::kUnavailable;
      continue;
    }
    if (net == NetStatus::kTimeout) counters_.add(Counter::kTimeouts);
    if (net == NetStatus::kProtocol) counters_.add(Counter::kProtocolErrors);
    const auto now = Deadline::Clock::now();
    if (attempt.cancelled())
      master.breaker.cancel(ticket, now);
    else if (net == NetStatus::kTimeout ? master.breaker.timeout(ticket, began, now)
                                        : master.breaker.failure(ticket, now))
      counters_.add(Counter::kBreakerOpen);
    outcome = entry_status(net);
  }
  if (!refusal.empty()) counters_.troubles.failed("masters", Trouble::kNotServing, refusal);
  return outcome;
}

Status DirectoryClient::open_namespace(const std::string& identity, const std::string& name,
                                       const Deadline& deadline, NamespaceId* ns, uint32_t* epoch) {
  wire::Writer body(16 + identity.size() + name.size());
  body.u32(static_cast<uint32_t>(identity.size())).u16(static_cast<uint16_t>(name.size())).u16(0);
  body.raw(identity.data(), identity.size()).raw(name.data(), name.size());
  return call(Op::kOpenNamespace, body, 16, deadline, [&](const FrameReply& reply) {
    NamespaceId id;
    uint32_t number = 0;
    read_namespace(reply.reader(), &id, &number);
    // The id is a function of identity and epoch: a master that answers anything else would have us read another model's pages.
    if (id != namespace_id(identity, number))
      throw wire::WireError(Status::kBadRequest, "a namespace id that is not the identity's");
    *ns = id;
    *epoch = number;
  });
}

Status DirectoryClient::bump_namespace(const NamespaceId& ns, const Deadline& deadline, NamespaceId* current,
                                       uint32_t* epoch) {
  wire::Writer body(kNamespaceBytes);
  body.raw(ns.data(), ns.size());
  return call(Op::kBumpNamespace, body, 16, deadline,
              [&](const FrameReply& reply) { read_namespace(reply.reader(), current, epoch); });
}

Status DirectoryClient::exists(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                               const Deadline& deadline, std::vector<uint8_t>* found) {
  const size_t n = fingerprints.size();
  wire::Writer body(16 + n * kFingerprintBytes);
  body.raw(ns.data(), ns.size()).u32(static_cast<uint32_t>(n)).u32(0);
  write_fingerprints(body, fingerprints);
  return call(Op::kExists, body, 8 + (n + 7) / 8, deadline, [&](const FrameReply& reply) {
    wire::Reader reader = reply.reader();
    wire::check_count(reader, n);
    reader.u32("reserved");
    const uint8_t* bits = reader.bytes((n + 7) / 8, "bits");
    found->resize(n);
    for (size_t i = 0; i < n; ++i) (*found)[i] = bits[i / 8] >> (i % 8) & 1;
  });
}

Status DirectoryClient::lookup(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                               uint32_t replicas, const Deadline& deadline, Holders* holders) {
  const size_t n = fingerprints.size();
  wire::Writer body(16 + n * kFingerprintBytes);
  body.raw(ns.data(), ns.size()).u32(static_cast<uint32_t>(n)).u8(static_cast<uint8_t>(replicas)).zeros(3);
  write_fingerprints(body, fingerprints);
  return call(Op::kLookup, body, 8 + n * sizeof(uint32_t) * (replicas + 1), deadline,
              [&](const FrameReply& reply) {
                wire::Reader reader = reply.reader();
                wire::check_count(reader, n);
                if (reader.u32("replicas") != replicas)
                  throw wire::WireError(Status::kBadRequest, "another number of replicas");
                holders->replicas = replicas;
                read_u32s(reader, n * replicas, &holders->segments);
                read_u32s(reader, n, &holders->lengths);
              });
}

Status DirectoryClient::place(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                              const std::vector<uint32_t>& lengths, uint32_t preferred,
                              const std::vector<uint32_t>& avoided, uint32_t replicas,
                              const Deadline& deadline, std::vector<uint32_t>* segments) {
  const size_t n = fingerprints.size();
  wire::Writer body(24 + n * (kFingerprintBytes + sizeof(uint32_t)) + avoided.size() * sizeof(uint32_t));
  body.raw(ns.data(), ns.size()).u32(static_cast<uint32_t>(n)).u32(preferred);
  body.raw(lengths.data(), n * sizeof(uint32_t));
  write_fingerprints(body, fingerprints);
  if (!avoided.empty() || replicas > 1) {
    body.u32(static_cast<uint32_t>(avoided.size()));
    body.raw(avoided.data(), avoided.size() * sizeof(uint32_t));
  }
  if (replicas > 1) body.u32(replicas);
  const size_t fields_bytes = 8 + n * sizeof(uint32_t) * replicas + (replicas > 1 ? 8 : 0);
  return call(Op::kPlace, body, fields_bytes, deadline, [&](const FrameReply& reply) {
    wire::Reader reader = reply.reader();
    wire::check_count(reader, n);
    reader.u32("reserved");
    read_u32s(reader, n, segments);
    if (replicas == 1 || reader.left() == 0) return;
    if (reader.u32("replicas") != replicas)
      throw wire::WireError(Status::kBadRequest, "another number of replicas");
    reader.u32("reserved");
    std::vector<uint32_t> further;
    read_u32s(reader, n * (replicas - 1), &further);
    segments->insert(segments->end(), further.begin(), further.end());
  });
}

Status DirectoryClient::fetch_map(const Deadline& deadline, SegmentMap* map) {
  wire::Writer body(8);
  body.u64(0);  // whatever we have: the whole map
  counters_.add(Counter::kMapRefreshes);
  return call(Op::kMap, body, wire::kBodyBytesMax / 4, deadline,
              [&](const FrameReply& reply) { *map = read_segment_map(reply.reader(), reply.map_epoch); });
}

}  // namespace kvstore
