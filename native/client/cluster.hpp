// What the calls of a client stand on: the directory, the segments as peers, where objects were, and the
// threads that move bytes.
//
// Thread-safe. Knows nothing of verbs and retries: these are the calls' own (calls/).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "base/worker_pool.hpp"
#include "client/client_counters.hpp"
#include "client/directory_client.hpp"
#include "client/guess_luck.hpp"
#include "client/location_cache.hpp"
#include "client/namespace_handles.hpp"
#include "client/page_client_options.hpp"
#include "client/registered_memory.hpp"
#include "client/segment_peers.hpp"
#include "client/transport.hpp"
#include "protocol/keys.hpp"

namespace kvstore {

// The entries of a call that go to one segment.
struct SegmentGroup {
  std::shared_ptr<SegmentPeer> peer;  // null: the map does not have it, and its entries are UNAVAILABLE
  std::vector<uint32_t> entries;      // ascending
};
using SegmentGroups = std::map<uint32_t, SegmentGroup>;  // by the segment's index

class Cluster {
 public:
  // Connects to nothing yet. Throws what TransportSet does.
  Cluster(std::vector<PeerAddress> masters, const PageClientOptions& options, ClientCounters& counters,
          RegisteredMemory& registered, NamespaceHandles& namespaces);
  // No call is in flight any more.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Fetches the segment map unless the one that is there will do.
  wire::Status refresh_map(const Deadline& deadline);
  wire::Status fetch_map(const Deadline& deadline);

  // Fills (*where)[entry] for `entries` from the directory, the best segments first: on this host, without trouble, then as
  // client and key have it, so that the readers of a page share its holders. Entries it does not know are left without one.
  wire::Status locate(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                      const std::vector<uint32_t>& entries, const Deadline& deadline,
                      std::vector<ObjectLocation>* where);

  // One batch, and the segment that it goes to; null: its entries are UNAVAILABLE.
  struct Part {
    std::shared_ptr<SegmentPeer> peer;
    TransportBatch batch;
    uint32_t segment = wire::kNoSegment;  // its index
    int stall_ms = 0;                     // how long it may wait there without progress; 0: to the deadline
  };
  // `prototype` has all but the entries.
  static std::vector<Part> parts_of(const SegmentGroups& groups, const TransportBatch& prototype);

  // Sends each part to its segment, all at the same time, and sets the status of every entry.
  void submit(std::vector<Part>& parts, const Deadline& deadline);
  void submit(const SegmentGroups& groups, const TransportBatch& prototype, const Deadline& deadline) {
    std::vector<Part> parts = parts_of(groups, prototype);
    submit(parts, deadline);
  }
  // The same while this thread does something else.
  void submit_beside(std::vector<Part>& parts, const Deadline& deadline, const std::function<void()>& beside);

  ClientCounters& counters() { return counters_; }
  NamespaceHandles& namespaces() { return namespaces_; }
  DirectoryClient& directory() { return directory_; }
  SegmentPeers& peers() { return peers_; }
  LocationCache& locations() { return locations_; }
  GuessLuck& guesses() { return guesses_; }
  TransportSet& transports() { return transports_; }

 private:
  ClientCounters& counters_;
  NamespaceHandles& namespaces_;
  WorkerPool workers_;
  TransportContext context_;
  TransportSet transports_;
  DirectoryClient directory_;
  SegmentPeers peers_;
  LocationCache locations_;
  GuessLuck guesses_;
  const uint64_t own_order_;  // what the clients of a page differ in when its holders are equals

  Mutex map_mutex_;
  std::optional<uint64_t> map_epoch_ GUARDED_BY(map_mutex_);  // none until the first map is there
  Deadline::Clock::time_point map_fetched_ GUARDED_BY(map_mutex_){};
};

// The segments that one call meets: each is found once, and the map is fetched once more when it does not
// have one of them.
class PeerFinder {
 public:
  PeerFinder(Cluster& cluster, const Deadline& deadline) : cluster_(cluster), deadline_(deadline) {}
  // Null when there is none, also by the newest map.
  const std::shared_ptr<SegmentPeer>& find(uint32_t segment);

 private:
  Cluster& cluster_;
  const Deadline& deadline_;
  std::map<uint32_t, std::shared_ptr<SegmentPeer>> found_;
  bool map_fetched_ = false;
};

// The part of `all` that `entries` name, in their order.
std::vector<Fingerprint> fingerprints_of(const std::vector<Fingerprint>& all,
                                         const std::vector<uint32_t>& entries);

}  // namespace kvstore
