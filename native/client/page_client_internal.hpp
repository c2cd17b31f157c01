// What the page_client*.cpp files share.
#pragma once

#include <unistd.h>

#include <numeric>

#include "client/page_client.hpp"

namespace kvstore {

// One call on its way: the arguments, and what is computed from them once.
struct PageClient::Call {
  KeyBlock keys;
  const Deadline deadline;
  uint8_t* statuses;
  std::vector<Fingerprint> fingerprints{};  // of all entries, in the namespace that keys.ns says

  void set(uint32_t entry, wire::Status status) { statuses[entry] = static_cast<uint8_t>(status); }
  wire::Status status(uint32_t entry) const { return static_cast<wire::Status>(statuses[entry]); }
  void set_all(wire::Status status) {
    std::fill_n(statuses, keys.entry_count(), static_cast<uint8_t>(status));
  }
  std::vector<uint32_t> all_entries() const {
    std::vector<uint32_t> all(keys.entry_count());
    std::iota(all.begin(), all.end(), 0u);
    return all;
  }
  std::vector<Fingerprint> fingerprints_of(const std::vector<uint32_t>& entries) const {
    if (entries.size() == fingerprints.size()) return fingerprints;
    std::vector<Fingerprint> some;
    some.reserve(entries.size());
    for (const uint32_t entry : entries) some.push_back(fingerprints[entry]);
    return some;
  }
};

// Everything that has threads or connections.
struct PageClient::Core {
  Core(std::vector<PeerAddress> masters, const PageClientOptions& options, ClientCounters& counters,
       RegisteredMemory& registered);

  WorkerPool workers;
  TransportContext context;
  TransportSet transports;
  DirectoryClient directory;
  SegmentPeers peers;
  LocationCache locations;
  std::mutex map_mutex;
  std::shared_ptr<const SegmentMap> map;  // null until the first one is there
  Deadline::Clock::time_point map_fetched{};
};

// Counts the call as one in flight for its lifetime. Without a core (closed, or a forked child) there is nothing to call on.
class PageClient::CallGuard {
 public:
  explicit CallGuard(const PageClient& client) : client_(client) {
    if (::getpid() != client.pid_) return;  // not even the lock: another thread may have held it at the fork
    std::lock_guard<std::mutex> lock(client.mutex_);
    if (client.closed_) return;
    ++client.calls_in_flight_;
    core_ = client.core_.get();
  }
  ~CallGuard() {
    if (core_ == nullptr) return;
    std::lock_guard<std::mutex> lock(client_.mutex_);
    if (--client_.calls_in_flight_ == 0) client_.idle_.notify_all();
  }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  Core* core() const { return core_; }

 private:
  const PageClient& client_;
  Core* core_ = nullptr;
};

// Adds a finished call to the counters of its kind.
struct CallCounters {
  Counter calls, keys, hits, misses, failures;
};
void count_call(ClientCounters& counters, const CallCounters& kind, const uint8_t* statuses, size_t n);

}  // namespace kvstore
