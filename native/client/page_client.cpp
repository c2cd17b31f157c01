#include "client/page_client.hpp"

#include <algorithm>

#include "client/page_client_internal.hpp"

namespace kvstore {
namespace {

using wire::Status;

// With replicas of the directory at different epochs the map would otherwise be fetched with every call.
constexpr int64_t kMapIntervalMs = 100;

}  // namespace

PageClient::Core::Core(std::vector<PeerAddress> masters, const PageClientOptions& options,
                       ClientCounters& counters, RegisteredMemory& registered)
    : workers(std::clamp<size_t>(4 * std::max(options.connections_per_peer, options.copy_threads), 4, 32)),
      context{{options.token, options.name},
              options.connections_per_peer,
              options.copy_threads,
              options.connect_timeout_ms,
              options.run_bytes,
              workers,
              counters,
              registered},
      transports(options.transports, context, options.transport_options),
      directory(std::move(masters),
                {context.hello, options.connect_timeout_ms, {options.backoff_ms_min, options.backoff_ms_max}},
                counters),
      peers(context, transports, {options.backoff_ms_min, options.backoff_ms_max}),
      locations(options.location_cache_entries) {}

PageClient::PageClient(std::vector<PeerAddress> masters, const PageClientOptions& options)
    : pid_(::getpid()),
      options_(options),
      core_(std::make_unique<Core>(std::move(masters), options_, counters_, registered_)) {
  transport_refusals_ = core_->transports.refusals();
}

PageClient::~PageClient() { close(); }

void PageClient::close() {
  if (::getpid() != pid_) {
    (void)core_
        .release();  // its threads exist in the parent only: there is nothing here that could be joined or freed safely
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  idle_.wait(lock, [&] { return calls_in_flight_ == 0; });
  if (core_ == nullptr) return;
  core_->peers.clear();  // hands the transports to the workers
  core_->workers.close();
  core_.reset();
}

std::pair<Status, int> PageClient::open_namespace(const std::string& identity, const std::string& name,
                                                  const Deadline& deadline) {
  const CallGuard guard(*this);
  if (guard.core() == nullptr && ::getpid() != pid_) return {Status::kUnavailable, 0};
  const int handle = namespaces_.add(identity, name);
  if (handle < 0) return {Status::kTooLarge, handle};
  if (guard.core() == nullptr) return {Status::kUnavailable, handle};
  try {
    NamespaceId ns;
    return {namespaces_.ensure_open(handle, guard.core()->directory, deadline, &ns), handle};
  } catch (...) {
    counters_.add(Counter::kInternalErrors);
    return {Status::kInternal, handle};
  }
}

Status PageClient::bump_namespace(int handle, const Deadline& deadline) {
  const CallGuard guard(*this);
  if (guard.core() == nullptr) return Status::kUnavailable;
  try {
    Status status = namespaces_.bump(handle, guard.core()->directory, deadline);
    // Somebody else bumped it since it was opened here: what was asked for is a newer epoch than the *current* one.
    if (status == Status::kStaleNamespace)
      status = namespaces_.bump(handle, guard.core()->directory, deadline);
    return status;
  } catch (...) {
    counters_.add(Counter::kInternalErrors);
    return Status::kInternal;
  }
}

bool PageClient::valid_handle(int handle) const { return ::getpid() != pid_ || namespaces_.valid(handle); }

NamespaceHandles::State PageClient::namespace_state(int handle) const {
  return ::getpid() != pid_ ? NamespaceHandles::State{} : namespaces_.state(handle);
}

bool PageClient::register_memory(uint64_t address, uint64_t size_bytes, int fd) {
  if (::getpid() != pid_ || !registered_.add(address, size_bytes, fd)) return false;
  const CallGuard guard(*this);
  const auto range = registered_.find(address);
  if (range != nullptr && guard.core() != nullptr) guard.core()->transports.memory_registered(range);
  return true;
}

void PageClient::unregister(uint64_t address) {
  if (::getpid() == pid_) registered_.remove(address);
}

std::vector<PageClient::SegmentView> PageClient::segments() const {
  const CallGuard guard(*this);
  std::vector<SegmentView> views;
  if (guard.core() == nullptr) return views;
  for (const auto& [index, peer] : guard.core()->peers.all())
    views.push_back({peer->record(), peer->usable(), peer->transport_name()});
  return views;
}

void PageClient::in_namespace(Core& core, int handle, Call& call, const std::function<bool()>& body) {
  try {
    for (int attempt = 0; attempt < 2; ++attempt) {
      const Status status = namespaces_.ensure_open(handle, core.directory, call.deadline, &call.keys.ns);
      if (status != Status::kOk) {
        call.set_all(status == Status::kTimeout ? status : Status::kUnavailable);
        return;
      }
      call.fingerprints = call.keys.fingerprints();
      call.set_all(Status::kUnavailable);
      if (body()) return;
      counters_.add(Counter::kStaleNamespace);
      namespaces_.mark_stale(handle, call.keys.ns);
    }
  } catch (...) {  // out of memory, most likely: an answer of the store's kind is all that the engine can use
    call.set_all(Status::kInternal);
    counters_.add(Counter::kInternalErrors);
  }
}

Status PageClient::refresh_map(Core& core, const Deadline& deadline, bool force) {
  {
    std::lock_guard<std::mutex> lock(core.map_mutex);
    const bool current = core.map != nullptr && core.map->epoch == core.directory.map_epoch_seen();
    const bool recent = Deadline::Clock::now() - core.map_fetched < std::chrono::milliseconds(kMapIntervalMs);
    if (core.map != nullptr && (force ? false : current || recent)) return Status::kOk;
  }
  auto fresh = std::make_shared<SegmentMap>();
  const Status status = core.directory.fetch_map(deadline, fresh.get());
  if (status != Status::kOk) return status;
  std::lock_guard<std::mutex> lock(core.map_mutex);
  core.peers.follow(*fresh);
  core.map = std::move(fresh);
  core.map_fetched = Deadline::Clock::now();
  return Status::kOk;
}

Status PageClient::look_up(Core& core, Call& call, const std::vector<uint32_t>& entries,
                           std::vector<ObjectLocation>* where) {
  DirectoryClient::Holders holders;
  Status status = core.directory.lookup(call.keys.ns, call.fingerprints_of(entries), kReplicasTried,
                                        call.deadline, &holders);
  if (status != Status::kOk) return status;
  status = refresh_map(core, call.deadline, false);
  if (status != Status::kOk) return status;
  // A batch has many entries and few segments: each is found once.
  std::map<uint32_t, std::shared_ptr<SegmentPeer>> peers;
  bool map_forced = false;
  const auto peer_of = [&](uint32_t segment) -> const std::shared_ptr<SegmentPeer>& {
    const auto [at, fresh] = peers.emplace(segment, nullptr);
    if (!fresh) return at->second;
    at->second = core.peers.find(segment);
    if (at->second == nullptr && !map_forced) {
      map_forced = true;
      if (refresh_map(core, call.deadline, true) == Status::kOk) at->second = core.peers.find(segment);
    }
    return at->second;
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    ObjectLocation found;
    size_t kept = 0;
    for (uint32_t r = 0; r < kReplicasTried; ++r) {
      const uint32_t segment = holders.segment(r, i);
      if (segment != wire::kNoSegment && peer_of(segment) != nullptr) found.segments[kept++] = segment;
    }
    found.length = holders.lengths[i];
    if (kept == 2) {
      // A segment on this host first; else the key decides, so that the readers of a page share the load of its replicas.
      const bool first_near = peer_of(found.segments[0])->same_host();
      const bool second_near = peer_of(found.segments[1])->same_host();
      const bool odd = (call.fingerprints[entries[i]].hi & 1) != 0;
      if (second_near != first_near ? second_near : odd) std::swap(found.segments[0], found.segments[1]);
    }
    (*where)[entries[i]] = found;
  }
  return Status::kOk;
}

void PageClient::submit(Core& core, Call& call, const Groups& groups, const TransportBatch& prototype) {
  std::vector<TransportBatch> batches;
  std::vector<std::shared_ptr<SegmentPeer>> peers;
  for (const auto& [segment, entries] : groups) {
    TransportBatch batch = prototype;
    batch.keys = &call.keys;
    batch.statuses = call.statuses;
    batch.entries = entries;
    batches.push_back(std::move(batch));
    peers.push_back(core.peers.find(segment));
  }
  core.workers.run(batches.size(), [&](size_t i) {
    if (peers[i] == nullptr)
      batches[i].set_all(Status::kUnavailable);
    else
      peers[i]->submit(batches[i], call.deadline);
  });
}

void count_call(ClientCounters& counters, const CallCounters& kind, const uint8_t* statuses, size_t n) {
  uint64_t hits = 0, misses = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto status = static_cast<Status>(statuses[i]);
    hits += status == Status::kOk || status == Status::kExists;
    misses += status == Status::kMiss || status == Status::kNoSpace;
  }
  counters.add(kind.calls);
  counters.add(kind.keys, n);
  counters.add(kind.hits, hits);
  counters.add(kind.misses, misses);
  counters.add(kind.failures, n - hits - misses);
}

}  // namespace kvstore
