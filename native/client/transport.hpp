// The batch interface that every transport to a segment implements, and what transports are made from.
//
// A new transport is one new file that implements Transport and one line in transport_registry.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "base/worker_pool.hpp"
#include "client/client_counters.hpp"
#include "client/connection/frame_connection.hpp"
#include "client/pieces.hpp"
#include "client/registered_memory.hpp"
#include "client/segment_map.hpp"
#include "protocol/entry_blocks.hpp"
#include "protocol/net_status.hpp"
#include "transports/ucx/core/context.hpp"

namespace kvstore {

enum class BatchKind : uint8_t { kGet, kPut, kPin, kRemove, kSuspect };

// The entries of one call that go to one segment. Everything it points to outlives the call.
struct TransportBatch {
  BatchKind kind = BatchKind::kPin;
  const CallKeys* keys = nullptr;
  std::vector<uint32_t> entries;   // of the call, ascending, no duplicates
  uint8_t* statuses = nullptr;     // of the call, wire::Status; a transport writes those of `entries` only
  const Pieces* memory = nullptr;  // get, put: the pieces of all entries of the call
  uint32_t pin_ms = 0;             // pin
  bool ack_committed = true;       // put, remove
  uint32_t depth = 0;              // put: of key 0 of the call
  const std::vector<std::string_view>* texts = nullptr;  // put: one a key of the call, or null

  void set_status(uint32_t entry, wire::Status status) { statuses[entry] = static_cast<uint8_t>(status); }
  wire::Status status(uint32_t entry) const { return static_cast<wire::Status>(statuses[entry]); }
  void set_all(wire::Status status) {
    for (const uint32_t entry : entries) set_status(entry, status);
  }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  virtual bool same_host() const = 0;
  // Does the whole batch and sets the status of each of its entries, within the deadline, on the calling thread and on workers
  // that have finished when it returns. The result tells about the peer, not about the entries: kOk when it answered
  // everything. Thread-safe.
  virtual NetStatus submit(TransportBatch& batch, const Deadline& deadline) = 0;
};

// What transports share; owned by the client and outliving them.
struct TransportContext {
  HelloOptions hello;
  size_t connections_per_peer = 2;
  size_t copy_threads = 2;
  int connect_timeout_ms = 250;
  uint64_t run_bytes = 4u << 20;
  bool same_host_enabled = true;
  bool tcp_enabled = true;
  std::shared_ptr<UcxContext> rdma;  // null: no RDMA
  WorkerPool& workers;
  ClientCounters& counters;
  RegisteredMemory& registered;
};

// Tries the transports in the order of preference. Null when none can be had: *why then tells of the last one tried.
std::unique_ptr<Transport> open_transport(const SegmentRecord& segment, TransportContext& context,
                                          const Deadline& deadline, NetStatus* why);

}  // namespace kvstore
