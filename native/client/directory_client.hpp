// The directory port as a client sees it: several masters, any of which may be dead, hung, or not the leader.
//
// Thread-safe. Requests go to the last master that answered; the next one is tried when it refuses or fails. With several masters
// no single one may use up the deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/circuit_breaker.hpp"
#include "client/client_counters.hpp"
#include "client/connection/connection_pool.hpp"
#include "client/segment_map.hpp"
#include "client/segment_peers.hpp"
#include "protocol/keys.hpp"

namespace kvstore {

class DirectoryClient {
 public:
  struct Options {
    HelloOptions hello;
    int connect_timeout_ms = 250;
    BreakerOptions breaker;
  };
  DirectoryClient(std::vector<PeerAddress> masters, const Options& options, ClientCounters& counters);

  // All return OK, a status of the reply, or TIMEOUT / UNAVAILABLE when no master answered.
  wire::Status open_namespace(const std::string& identity, const std::string& name, const Deadline& deadline,
                              NamespaceId* ns, uint32_t* epoch);
  wire::Status bump_namespace(const NamespaceId& ns, const Deadline& deadline, NamespaceId* current,
                              uint32_t* epoch);
  // (*found)[i] is 1 where fingerprint i is known.
  wire::Status exists(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                      const Deadline& deadline, std::vector<uint8_t>* found);
  struct Holders {
    uint32_t replicas = 0;
    std::vector<uint32_t> segments;  // replica-major, wire::kNoSegment where there is none
    std::vector<uint32_t> lengths;
    uint32_t segment(uint32_t replica, size_t entry) const {
      return segments[replica * lengths.size() + entry];
    }
  };
  wire::Status lookup(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints, uint32_t replicas,
                      const Deadline& deadline, Holders* holders);
  // segments[i]: an index, wire::kNoSegment, wire::kAlreadyThere or wire::kOtherLength. `avoided`: those that do not serve this
  // client, at most wire::kAvoidedMax: the master looks whether they serve anybody.
  // `replicas`: copies of each, at most wire::kReplicasMax. segments[r * n + i] is for copy r of entry i, and wire::kNoSegment where
  // there is none; masters of earlier releases answer one copy.
  wire::Status place(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                     const std::vector<uint32_t>& lengths, uint32_t preferred,
                     const std::vector<uint32_t>& avoided, uint32_t replicas, const Deadline& deadline,
                     std::vector<uint32_t>* segments);
  wire::Status fetch_map(const Deadline& deadline, SegmentMap* map);

  // Map epoch of the last reply of any master: differs from the map's when that is out of date.
  uint64_t map_epoch_seen() const { return map_epoch_seen_.load(std::memory_order_relaxed); }

 private:
  struct Master {
    Master(PeerAddress address, const Options& options, ClientCounters& counters, uint64_t seed);
    ConnectionPool pool;
    CircuitBreaker breaker;
  };
  // `read` parses an OK reply and may throw wire::WireError, which counts as the master's failure.
  using ReadReply = std::function<void(const FrameReply&)>;
  wire::Status call(wire::Op op, const wire::Writer& body, size_t fields_hint_bytes, const Deadline& deadline,
                    const ReadReply& read);
  NetStatus exchange(Master& master, wire::Op op, const wire::Writer& body, size_t fields_hint_bytes,
                     const Deadline& deadline, const ReadReply& read, wire::Status* status,
                     std::string* refusal);

  std::vector<std::unique_ptr<Master>> masters_;
  ClientCounters& counters_;
  // Where to start: replicas serve reads, the leader alone serves changes.
  std::atomic<size_t> last_reader_{0};
  std::atomic<size_t> last_leader_{0};
  std::atomic<uint64_t> map_epoch_seen_{0};
};

}  // namespace kvstore
