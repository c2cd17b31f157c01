#include "client/cluster.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <tuple>

namespace kvstore {
namespace {

using wire::Status;

// With replicas of the directory at different epochs the map would otherwise be fetched with every call.
constexpr int64_t kMapIntervalMs = 100;

// Numbers that differ little come out in no order.
uint64_t spread(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
  return x ^ x >> 33;
}

}  // namespace

Cluster::Cluster(std::vector<PeerAddress> masters, const PageClientOptions& options, ClientCounters& counters,
                 RegisteredMemory& registered, NamespaceHandles& namespaces)
    : counters_(counters),
      namespaces_(namespaces),
      workers_(std::clamp<size_t>(4 * std::max(options.connections_per_peer, options.copy_threads), 4, 32)),
      context_{{options.token, options.name},
               options.connections_per_peer,
               options.copy_threads,
               options.connect_timeout_ms,
               options.run_bytes,
               workers_,
               counters,
               registered},
      transports_(options.transports, context_, options.transport_options),
      directory_(
          std::move(masters),
          {context_.hello, options.connect_timeout_ms, {options.backoff_ms_min, options.backoff_ms_max}},
          counters),
      peers_(context_, transports_, {options.backoff_ms_min, options.backoff_ms_max}),
      locations_(options.location_cache_entries),
      own_order_(std::random_device{}()) {}

Cluster::~Cluster() {
  peers_.clear();  // hands the transports to the workers
  workers_.close();
}

Status Cluster::refresh_map(const Deadline& deadline) {
  {
    const MutexLock lock(map_mutex_);
    const bool recent = Deadline::Clock::now() - map_fetched_ < std::chrono::milliseconds(kMapIntervalMs);
    if (map_epoch_ && (*map_epoch_ == directory_.map_epoch_seen() || recent)) return Status::kOk;
  }
  return fetch_map(deadline);
}

Status Cluster::fetch_map(const Deadline& deadline) {
  SegmentMap fresh;
  const Status status = directory_.fetch_map(deadline, &fresh);
  if (status != Status::kOk) return status;
  const MutexLock lock(map_mutex_);
  peers_.follow(fresh);
  map_epoch_ = fresh.epoch;
  map_fetched_ = Deadline::Clock::now();
  return Status::kOk;
}

Status Cluster::locate(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                       const std::vector<uint32_t>& entries, const Deadline& deadline,
                       std::vector<ObjectLocation>* where) {
  DirectoryClient::Holders holders;
  Status status =
      directory_.lookup(ns, fingerprints_of(fingerprints, entries), wire::kReplicasMax, deadline, &holders);
  if (status == Status::kOk) status = refresh_map(deadline);
  if (status != Status::kOk) return status;
  PeerFinder finder(*this, deadline);
  struct Ranked {
    bool far;
    bool troubled;
    uint64_t order;
    uint32_t segment;
    bool operator<(const Ranked& o) const {
      return std::tie(far, troubled, order) < std::tie(o.far, o.troubled, o.order);
    }
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    ObjectLocation found;
    found.length = holders.lengths[i];
    std::array<Ranked, wire::kReplicasMax> ranked;
    size_t kept = 0;
    for (uint32_t r = 0; r < wire::kReplicasMax; ++r) {
      const uint32_t segment = holders.segment(r, i);
      if (segment == wire::kNoSegment) break;
      const std::shared_ptr<SegmentPeer>& peer = finder.find(segment);
      if (peer != nullptr) ranked[kept++] = {false, false, 0, segment};
    }
    if (kept > 1) {
      const uint64_t own = fingerprints[entries[i]].hi ^ own_order_;
      for (size_t k = 0; k < kept; ++k) {
        const SegmentPeer& peer = *finder.find(ranked[k].segment);
        ranked[k].far = !peer.same_host();
        ranked[k].troubled = peer.troubled();
        ranked[k].order = spread(own + ranked[k].segment);
      }
      std::sort(ranked.begin(), ranked.begin() + static_cast<ptrdiff_t>(kept));
    }
    for (size_t k = 0; k < std::min<size_t>(kept, kReplicasTried); ++k) found.segments[k] = ranked[k].segment;
    (*where)[entries[i]] = found;
  }
  return Status::kOk;
}

std::vector<Cluster::Part> Cluster::parts_of(const SegmentGroups& groups, const TransportBatch& prototype) {
  std::vector<Part> parts;
  parts.reserve(groups.size());
  for (const auto& [segment, group] : groups) {
    parts.push_back({group.peer, prototype, segment});
    parts.back().batch.entries = group.entries;
  }
  return parts;
}

namespace {

void send(Cluster::Part& part, const Deadline& deadline) {
  if (part.peer == nullptr)
    part.batch.set_all(Status::kUnavailable);
  else
    part.peer->submit(part.batch, part.stall_ms > 0 ? deadline.with_stall_ms(part.stall_ms) : deadline);
}

}  // namespace

void Cluster::submit(std::vector<Part>& parts, const Deadline& deadline) {
  const auto one = [&](size_t i) { send(parts[i], deadline); };
  workers_.run(parts.size(), std::cref(one));
}

void Cluster::submit_beside(std::vector<Part>& parts, const Deadline& deadline,
                            const std::function<void()>& beside) {
  // This thread takes the first, and does not wait for another to wake up.
  const auto one = [&](size_t i) { i == 0 ? beside() : send(parts[i - 1], deadline); };
  workers_.run(parts.size() + 1, std::cref(one));
}

const std::shared_ptr<SegmentPeer>& PeerFinder::find(uint32_t segment) {
  const auto [at, fresh] = found_.emplace(segment, nullptr);
  if (!fresh) return at->second;
  at->second = cluster_.peers().find(segment);
  if (at->second == nullptr && !map_fetched_) {
    map_fetched_ = true;
    if (cluster_.fetch_map(deadline_) == Status::kOk) at->second = cluster_.peers().find(segment);
  }
  return at->second;
}

std::vector<Fingerprint> fingerprints_of(const std::vector<Fingerprint>& all,
                                         const std::vector<uint32_t>& entries) {
  std::vector<Fingerprint> some;
  some.reserve(entries.size());
  for (const uint32_t entry : entries) some.push_back(all[entry]);
  return some;
}

}  // namespace kvstore
