// The client: pages by key, over a directory of several masters and any number of segments.
//
// Any thread may call. No call throws for anything a peer or the network does, outlasts its deadline by more than scheduling
// noise, or leaves a thread behind that could write into its caller's memory. After close(), and in a forked child, every call
// answers as an empty store does.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "client/client_counters.hpp"
#include "client/directory_client.hpp"
#include "client/location_cache.hpp"
#include "client/namespace_handles.hpp"
#include "client/pieces.hpp"
#include "client/registered_memory.hpp"
#include "client/segment_peers.hpp"
#include "client/transport.hpp"
#include "protocol/entry_blocks.hpp"

namespace kvstore {

struct PageClientOptions {
  std::string token;
  std::string name;
  size_t connections_per_peer = 2;
  size_t copy_threads = 2;
  int connect_timeout_ms = 250;
  int64_t backoff_ms_min = 50;
  int64_t backoff_ms_max = 1000;
  uint64_t run_bytes = 4u << 20;
  size_t location_cache_entries = 65536;
  std::vector<TransportType> transports;  // there to choose from
  OptionTexts transport_options;          // by the names that they declare
};

struct PutOptions {
  bool ack_committed = true;
  uint32_t depth = 0;
  const std::vector<std::string_view>* texts = nullptr;  // one a key, or null
};

class PageClient {
 public:
  // Connects to nothing yet. The namespace of `keys` arguments below is ignored: it is the handle's. Throws what
  // TransportSet does.
  PageClient(std::vector<PeerAddress> masters, const PageClientOptions& options);
  ~PageClient();
  PageClient(const PageClient&) = delete;
  PageClient& operator=(const PageClient&) = delete;

  // The handle is usable whatever the status; -1 when there are too many.
  std::pair<wire::Status, int> open_namespace(const std::string& identity, const std::string& name,
                                              const Deadline& deadline);
  wire::Status bump_namespace(int handle, const Deadline& deadline);
  bool valid_handle(int handle) const;
  // Makes room for another namespace; calls with the handle find nothing from now on.
  void close_namespace(int handle) { namespaces_.remove(handle); }
  NamespaceHandles::State namespace_state(int handle) const;

  // `statuses`: one byte an entry, all set. `memory` has the entries of the call.
  void exists(int handle, const KeyBlock& keys, uint32_t pin_ms, const Deadline& deadline, uint8_t* statuses);
  void get(int handle, const KeyBlock& keys, const Pieces& memory, const Deadline& deadline,
           uint8_t* statuses);
  void put(int handle, const KeyBlock& keys, const Pieces& memory, const PutOptions& options,
           const Deadline& deadline, uint8_t* statuses);
  void remove(int handle, const KeyBlock& keys, const Deadline& deadline, uint8_t* statuses);

  // fetch() in two halves, because the caller allocates in between: the lengths of what can be fetched, 0 for entries that are
  // not there or would exceed bytes_max in total; then a get of exactly those entries.
  std::vector<uint32_t> fetch_lengths(int handle, const KeyBlock& keys, uint64_t bytes_max,
                                      const Deadline& deadline, uint8_t* statuses);
  void fetch(int handle, const KeyBlock& keys, const std::vector<uint32_t>& lengths,
             const std::vector<uint64_t>& pointers, const Deadline& deadline, uint8_t* statuses);

  // Transports that are wanted and that this process can't have, and why.
  const std::map<std::string, std::string>& transport_refusals() const { return transport_refusals_; }

  // `fd`: the file that the memory is, or -1.
  bool register_memory(uint64_t address, uint64_t size_bytes, int fd);
  void unregister(uint64_t address);

  const ClientCounters& counters() const { return counters_; }
  struct SegmentView {
    SegmentRecord record;
    bool usable;
    std::string transport;  // empty: none chosen yet
  };
  std::vector<SegmentView> segments() const;

  // Waits for the calls in flight, then closes connections, joins threads and unmaps. Idempotent.
  void close();

 private:
  struct Call;
  struct Core;
  class CallGuard;
  using Groups = std::map<uint32_t, std::vector<uint32_t>>;  // segment index -> entries

  // Runs `body` in the open namespace, and once more in the reopened one when it returns false ("stale").
  void in_namespace(Core& core, int handle, Call& call, const std::function<bool()>& body);
  // Fills where[entry] from the directory; entries it does not know are left without a segment.
  wire::Status look_up(Core& core, Call& call, const std::vector<uint32_t>& entries,
                       std::vector<ObjectLocation>* where);
  wire::Status refresh_map(Core& core, const Deadline& deadline, bool force);
  void submit(Core& core, Call& call, const Groups& groups, const TransportBatch& prototype);

  bool exists_pinned(Core& core, Call& call, uint32_t pin_ms);
  bool get_entries(Core& core, Call& call, const std::vector<uint32_t>& entries, const Pieces& memory);
  void report_suspects(Core& core, Call& call, const std::vector<std::pair<uint32_t, uint32_t>>& suspects);
  bool put_entries(Core& core, Call& call, const Pieces& memory, const PutOptions& options);
  bool remove_entries(Core& core, Call& call);

  const pid_t pid_;
  const PageClientOptions options_;
  ClientCounters counters_;
  RegisteredMemory registered_;
  std::map<std::string, std::string> transport_refusals_;
  NamespaceHandles namespaces_;

  mutable std::mutex mutex_;
  mutable std::condition_variable idle_;
  mutable size_t calls_in_flight_ = 0;
  bool closed_ = false;
  std::unique_ptr<Core> core_;  // gone after close()
};

// How long a location may be used without asking again, if its pin lasts as long. Segments refuse a namespace that was cleared;
// one that has not heard of it yet may serve its pages for so long.
constexpr int64_t kLocationTtlMs = 10000;

}  // namespace kvstore
