// The client: pages by key, over a directory of several masters and any number of segments. A facade: it
// counts calls and closes after the last; what a verb does is in calls/, what they share in cluster.hpp.
//
// Any thread may call. No call throws for anything a peer or the network does, outlasts its deadline by more
// than scheduling noise, or leaves a thread behind that could write into its caller's memory. After close(),
// and in a forked child, every call answers as an empty store does.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "client/calls/put_call.hpp"
#include "client/client_counters.hpp"
#include "client/cluster.hpp"
#include "client/namespace_handles.hpp"
#include "client/page_client_options.hpp"
#include "client/pieces.hpp"
#include "client/registered_memory.hpp"
#include "protocol/keys.hpp"

namespace kvstore {

class PageClient {
 public:
  // Connects to nothing yet. The namespace of `keys` arguments below is ignored: it is the handle's. Throws
  // what TransportSet does.
  PageClient(std::vector<PeerAddress> masters, const PageClientOptions& options);
  ~PageClient();
  PageClient(const PageClient&) = delete;
  PageClient& operator=(const PageClient&) = delete;

  // The handle is usable whatever the status; -1 when there are too many.
  std::pair<wire::Status, int> open_namespace(const std::string& identity, const std::string& name,
                                              const Deadline& deadline);
  wire::Status bump_namespace(int handle, const Deadline& deadline);
  // Whether open_namespace() ever gave it out: a closed namespace answers as an empty store does.
  bool valid_handle(int handle) const;
  // The handle that a client of the parent process gave out for it.
  void restore_namespace(int handle, const std::string& identity, const std::string& name) {
    namespaces_.restore(handle, identity, name);
  }
  // Makes room for another namespace; calls with the handle find nothing from now on.
  void close_namespace(int handle) { namespaces_.remove(handle); }
  NamespaceHandles::State namespace_state(int handle) const;

  // `statuses`: one byte an entry, all set. `memory` has the entries of the call; one that it calls at fault
  // is answered with that fault, and the others as without it.
  void exists(int handle, const KeyBlock& keys, uint32_t pin_ms, const Deadline& deadline, uint8_t* statuses);
  void get(int handle, const KeyBlock& keys, const Pieces& memory, const Deadline& deadline,
           uint8_t* statuses);
  void put(int handle, const KeyBlock& keys, const Pieces& memory, const PutOptions& options,
           const Deadline& deadline, uint8_t* statuses);
  void remove(int handle, const KeyBlock& keys, const Deadline& deadline, uint8_t* statuses);
  void keep(int handle, const KeyBlock& keys, const wire::KeepWish& wish, const Deadline& deadline,
            uint8_t* statuses);

  // fetch() in two halves, because the caller allocates in between: the lengths of what can be fetched, 0 for
  // entries that are not there or would exceed bytes_max in total; then a get of exactly those entries.
  std::vector<uint32_t> fetch_lengths(int handle, const KeyBlock& keys, uint64_t bytes_max,
                                      const Deadline& deadline, uint8_t* statuses);
  void fetch(int handle, const KeyBlock& keys, const std::vector<uint32_t>& lengths,
             const std::vector<uint64_t>& pointers, const Deadline& deadline, uint8_t* statuses);

  // Transports that are wanted and that this process can't have, and why.
  const std::map<std::string, std::string>& transport_refusals() const { return transport_refusals_; }

  // `fd`: the file that the memory is a shared mapping of, from its start, or -1. False when it is not.
  bool register_memory(uint64_t address, uint64_t size_bytes, int fd);
  void unregister(uint64_t address);

  const ClientCounters& counters() const { return counters_; }
  struct SegmentView {
    SegmentRecord record;
    bool usable;
    std::string transport;  // empty: none chosen yet
  };
  std::vector<SegmentView> segments() const;

  // Waits for the calls in flight, then closes connections, joins threads and unmaps. Idempotent. From within a
  // call of its own (a signal handler) it ends that call and returns: the last call does the rest.
  void close();

 private:
  class CallGuard;
  // Has `call` set the statuses of `keys`, unless the client is closed; false then. What it throws (out of
  // memory, most likely) becomes INTERNAL for all entries: an answer of the store's kind is all that the
  // engine can use.
  template <typename Call>
  bool answer(const KeyBlock& keys, uint8_t* statuses, const Call& call);

  // In a forked child: its threads exist in the parent only, so there is nothing that could be joined or freed safely. Nor may the
  // child take the mutex (NO_THREAD_SAFETY_ANALYSIS): another thread may have held it at the fork.
  void leave_to_parent() NO_THREAD_SAFETY_ANALYSIS { (void)cluster_.release(); }

  const pid_t pid_;
  ClientCounters counters_;
  RegisteredMemory registered_;
  std::map<std::string, std::string> transport_refusals_;
  NamespaceHandles namespaces_;

  mutable Mutex mutex_;
  mutable CondVar idle_;
  mutable size_t calls_in_flight_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
  bool last_call_closes_ GUARDED_BY(mutex_) = false;
  mutable std::unique_ptr<Cluster> cluster_ GUARDED_BY(mutex_);  // gone after close()
};

}  // namespace kvstore
