// The batch interface that every transport to a segment implements, what one brings with it, and the set of them that a client has.
//
// A new transport is a folder in native/transports/ that ends in one TransportType, and a line in native/builtin/builtin.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "base/declared.hpp"
#include "base/worker_pool.hpp"
#include "client/client_counters.hpp"
#include "client/connection/frame_connection.hpp"
#include "client/pieces.hpp"
#include "client/registered_memory.hpp"
#include "client/segment_map.hpp"
#include "protocol/entry_blocks.hpp"
#include "protocol/net_status.hpp"

namespace kvstore {

enum class BatchKind : uint8_t { kGet, kPut, kPin, kRemove, kSuspect, kKeep };

// The entries of one call that go to one segment. Everything it points to outlives the call.
struct TransportBatch {
  BatchKind kind = BatchKind::kPin;
  const KeyBlock* keys = nullptr;
  std::vector<uint32_t> entries;   // of the call, ascending, no duplicates
  uint8_t* statuses = nullptr;     // of the call, wire::Status; a transport writes those of `entries` only
  const Pieces* memory = nullptr;  // get, put: the pieces of all entries of the call
  uint32_t pin_ms = 0;             // pin
  bool ack_committed = true;       // put, remove
  uint32_t depth = 0;              // put: of key 0 of the call
  const std::vector<std::string_view>* texts = nullptr;  // put: one a key of the call, or null
  wire::KeepWish wish;                                   // keep, put

  void set_status(uint32_t entry, wire::Status status) { statuses[entry] = static_cast<uint8_t>(status); }
  wire::Status status(uint32_t entry) const { return static_cast<wire::Status>(statuses[entry]); }
  void set_all(wire::Status status) {
    for (const uint32_t entry : entries) set_status(entry, status);
  }
};

// The way to one segment.
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

// What the transports of a client share; owned by the client and outliving them.
struct TransportContext {
  HelloOptions hello;
  size_t connections_per_peer = 2;
  size_t copy_threads = 2;
  int connect_timeout_ms = 250;
  uint64_t run_bytes = 4u << 20;
  WorkerPool& workers;
  ClientCounters& counters;
  RegisteredMemory& registered;
};

// One kind of transport as one client has it: makes the ways to the segments, and keeps what they share. Thread-safe.
class TransportFactory {
 public:
  virtual ~TransportFactory() = default;
  // Null when the segment can't be had this way; *why then says how that ended.
  virtual std::unique_ptr<Transport> open(const SegmentRecord& segment, const Deadline& deadline,
                                          NetStatus* why) = 0;
  // A guess before anything is open: whether the segment is on this host and would be had this way.
  virtual bool near(const SegmentRecord&) const { return false; }
  // Pages must reach other hosts this way or not at all.
  virtual bool required() const { return false; }
  // The client has registered memory: what takes long should begin now, in the background.
  virtual void memory_registered(const std::shared_ptr<const RegisteredRange>&) {}
};

// What a kind of transport declares. The client counts `transport_<name>_bytes_get` and `transport_<name>_bytes_put` for each.
struct TransportType {
  enum class Reach : uint8_t { kSameHost, kAnyHost };

  const char* name;
  int preference;  // a segment is tried by the highest first
  Reach reach;
  std::vector<OptionSpec> options;
  std::vector<CounterSpec> counters;  // there from the start, whether the transport is on or off
  // Null when the options turn it off, or when it can't be had on this machine: *refusal then says why. Throws
  // std::invalid_argument over an option, std::runtime_error where it is required and can't be had; both say "<option>: <what is wrong>".
  std::unique_ptr<TransportFactory> (*make)(TransportContext& context, const DeclaredOptions& options,
                                            std::string* refusal);
};

// All that are counted for it.
std::vector<CounterSpec> counters_of(const TransportType& type);

// Thread-safe; outlives what it opened.
class TransportSet {
 public:
  // Throws what TransportType::make throws, and std::invalid_argument when everything is off.
  TransportSet(std::vector<TransportType> types, TransportContext& context, const OptionTexts& options);

  // By the most preferred transport that can be had. Null when none can: *why then tells of the last one tried.
  std::unique_ptr<Transport> open(const SegmentRecord& segment, const Deadline& deadline,
                                  NetStatus* why) const;
  bool near(const SegmentRecord& segment) const;
  void memory_registered(const std::shared_ptr<const RegisteredRange>& range) const;
  // Transports that are wanted and can't be had here, and why.
  const std::map<std::string, std::string>& refusals() const { return refusals_; }

 private:
  std::vector<std::unique_ptr<TransportFactory>> factories_;  // most preferred first
  std::map<std::string, std::string> refusals_;
};

}  // namespace kvstore
