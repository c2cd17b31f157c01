#include "client/page_client.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/cancellation.hpp"
#include "base/own_mappings.hpp"
#include "client/calls/exists_call.hpp"
#include "client/calls/fetch_call.hpp"
#include "client/calls/get_call.hpp"
#include "client/calls/keep_call.hpp"
#include "client/calls/remove_call.hpp"

namespace kvstore {

using wire::Status;

namespace {

void no_answers_yet(const KeyBlock& keys, uint8_t* statuses) {
  std::fill_n(statuses, keys.entry_count(), static_cast<uint8_t>(Status::kUnavailable));
}

}  // namespace

// Counts the call as one in flight for its lifetime. Without a cluster (closed, or a forked child) there is
// nothing to call on. The last one takes the cluster down where close() could not wait for it.
class PageClient::CallGuard {
 public:
  explicit CallGuard(const PageClient& client) : client_(client) {
    if (::getpid() != client.pid_) return;  // not even the lock: another thread may have held it at the fork
    const MutexLock lock(client.mutex_);
    if (client.closed_) return;
    ++client.calls_in_flight_;
    cluster_ = client.cluster_.get();
    innermost_ = this;
  }
  ~CallGuard() {
    if (cluster_ == nullptr) return;
    innermost_ = outer_;
    MutexLock lock(client_.mutex_);
    if (client_.calls_in_flight_ == 1 && client_.last_call_closes_) {
      std::unique_ptr<Cluster> closed = std::move(client_.cluster_);
      lock.unlock();  // still counted: the client stays until its cluster is gone
      closed.reset();
      lock.lock();
    }
    if (--client_.calls_in_flight_ == 0) client_.idle_.notify_all();
  }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  Cluster* cluster() const { return cluster_; }

  // Ends the calls of this client that this thread is making: a signal handler runs in the middle of one. False
  // where there is none.
  static bool cancel_own(const PageClient& client) {
    bool found = false;
    for (const CallGuard* guard = innermost_; guard != nullptr; guard = guard->outer_) {
      if (&guard->client_ != &client) continue;
      found = true;
      if (guard->cancellation_ != nullptr) guard->cancellation_->cancel();
    }
    return found;
  }

 private:
  static thread_local const CallGuard* innermost_;

  const PageClient& client_;
  Cluster* cluster_ = nullptr;
  const CallGuard* const outer_ = innermost_;
  Cancellation* const cancellation_ = Cancellation::current();
};

thread_local const PageClient::CallGuard* PageClient::CallGuard::innermost_ = nullptr;

PageClient::PageClient(std::vector<PeerAddress> masters, const PageClientOptions& options)
    : pid_(::getpid()),
      namespaces_(options.namespace_confirmed_ms),
      cluster_(std::make_unique<Cluster>(std::move(masters), options, counters_, registered_, namespaces_)) {
  transport_refusals_ = cluster_->transports().refusals();
}

PageClient::~PageClient() { close(); }

void PageClient::close() {
  if (::getpid() != pid_) return leave_to_parent();
  const MutexLock lock(mutex_);
  closed_ = true;
  if (CallGuard::cancel_own(*this)) {  // to wait for it here would be to wait for ever
    last_call_closes_ = true;
    return;
  }
  while (calls_in_flight_ != 0) idle_.wait(mutex_);
  cluster_.reset();
}

template <typename Call>
bool PageClient::answer(const KeyBlock& keys, uint8_t* statuses, const Call& call) {
  const CallGuard guard(*this);
  if (guard.cluster() == nullptr) return false;
  try {
    call(*guard.cluster());
  } catch (...) {
    std::fill_n(statuses, keys.entry_count(), static_cast<uint8_t>(Status::kInternal));
    counters_.add(Counter::kInternalErrors);
  }
  return true;
}

void PageClient::exists(int handle, const KeyBlock& keys, uint32_t pin_ms, const Deadline& deadline,
                        uint8_t* statuses) {
  no_answers_yet(keys, statuses);
  const auto call = [&](Cluster& cluster) {
    ExistsCall(cluster, keys, pin_ms, deadline, statuses).run(handle);
  };
  if (answer(keys, statuses, call)) counters_.count(kExistsCounters, statuses, keys.entry_count());
}

void PageClient::get(int handle, const KeyBlock& keys, const Pieces& memory, const Deadline& deadline,
                     uint8_t* statuses) {
  no_answers_yet(keys, statuses);
  const auto call = [&](Cluster& cluster) {
    GetCall get(cluster, keys, sound_entries(memory, statuses), memory, deadline, statuses);
    get.run(handle);
    counters_.add(Counter::kGetBytes, get.bytes());
  };
  if (answer(keys, statuses, call)) counters_.count(kGetCounters, statuses, keys.entry_count());
}

void PageClient::put(int handle, const KeyBlock& keys, const Pieces& memory, const PutOptions& options,
                     const Deadline& deadline, uint8_t* statuses) {
  no_answers_yet(keys, statuses);
  const auto call = [&](Cluster& cluster) {
    PutCall put(cluster, keys, memory, options, deadline, statuses);
    put.run(handle);
    put.count();
  };
  if (answer(keys, statuses, call)) counters_.count(kPutCounters, statuses, keys.entry_count());
}

void PageClient::remove(int handle, const KeyBlock& keys, const Deadline& deadline, uint8_t* statuses) {
  no_answers_yet(keys, statuses);
  const auto call = [&](Cluster& cluster) { RemoveCall(cluster, keys, deadline, statuses).run(handle); };
  if (answer(keys, statuses, call)) counters_.count(kRemoveCounters, statuses, keys.entry_count());
}

void PageClient::keep(int handle, const KeyBlock& keys, const wire::KeepWish& wish, const Deadline& deadline,
                      uint8_t* statuses) {
  no_answers_yet(keys, statuses);
  const auto call = [&](Cluster& cluster) { KeepCall(cluster, keys, wish, deadline, statuses).run(handle); };
  if (answer(keys, statuses, call)) counters_.count(kKeepCounters, statuses, keys.entry_count());
}

std::vector<uint32_t> PageClient::fetch_lengths(int handle, const KeyBlock& keys, uint64_t bytes_max,
                                                const Deadline& deadline, uint8_t* statuses) {
  no_answers_yet(keys, statuses);
  std::vector<uint32_t> lengths(keys.entry_count(), 0);
  answer(keys, statuses, [&](Cluster& cluster) {
    FetchLengthsCall call(cluster, keys, bytes_max, deadline, statuses);
    call.run(handle);
    lengths = call.lengths();
  });
  return lengths;
}

void PageClient::fetch(int handle, const KeyBlock& keys, const std::vector<uint32_t>& lengths,
                       const std::vector<uint64_t>& pointers, const Deadline& deadline, uint8_t* statuses) {
  const auto call = [&](Cluster& cluster) {
    const Pieces memory = Pieces::sparse(pointers, {lengths.begin(), lengths.end()});
    GetCall get(cluster, keys, fetched_entries(lengths), memory, deadline, statuses);
    get.run(handle);
    counters_.add(Counter::kFetchBytes, get.bytes());
  };
  if (answer(keys, statuses, call)) counters_.count(kFetchCounters, statuses, keys.entry_count());
}

std::pair<Status, int> PageClient::open_namespace(const std::string& identity, const std::string& name,
                                                  const Deadline& deadline) {
  const CallGuard guard(*this);
  if (guard.cluster() == nullptr && ::getpid() != pid_) return {Status::kUnavailable, 0};
  const int handle = namespaces_.add(identity, name);
  if (handle < 0) return {Status::kTooLarge, handle};
  if (guard.cluster() == nullptr) return {Status::kUnavailable, handle};
  try {
    NamespaceId ns;
    return {namespaces_.ensure_open(handle, guard.cluster()->directory(), deadline, &ns), handle};
  } catch (...) {
    counters_.add(Counter::kInternalErrors);
    return {Status::kInternal, handle};
  }
}

Status PageClient::bump_namespace(int handle, const Deadline& deadline) {
  const CallGuard guard(*this);
  if (guard.cluster() == nullptr) return Status::kUnavailable;
  try {
    return namespaces_.bump(handle, guard.cluster()->directory(), deadline);
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
  if (::getpid() != pid_) return false;
  // A descriptor of other memory would have its bytes stored under this memory's keys, with a digest that fits them.
  if (fd >= 0 && !is_shared_mapping_of(address, size_bytes, fd)) return false;
  if (!registered_.add(address, size_bytes, fd)) return false;
  const CallGuard guard(*this);
  const auto range = registered_.find(address);
  if (range != nullptr && guard.cluster() != nullptr) guard.cluster()->transports().memory_registered(range);
  return true;
}

void PageClient::unregister(uint64_t address) {
  if (::getpid() == pid_) registered_.remove(address);
}

std::vector<PageClient::SegmentView> PageClient::segments() const {
  const CallGuard guard(*this);
  std::vector<SegmentView> views;
  if (guard.cluster() == nullptr) return views;
  for (const auto& [index, peer] : guard.cluster()->peers().all())
    views.push_back({peer->record(), peer->usable(), peer->transport_name()});
  return views;
}

}  // namespace kvstore
