// Bodies of the data port's requests, and checked readings of its replies (docs/protocol.md section 6). No IO; thread-safe.
//
// Every read_* function throws wire::WireError when the reply is not a possible answer to what was asked: too short, another
// count, a length that was not expected, an offset outside of the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "protocol/entry_blocks.hpp"
#include "protocol/reply.hpp"
#include "protocol/wire.hpp"

namespace kvstore::data_codec {

struct PutHead {
  bool ack_committed = true;
  uint8_t flags = 0;
  uint32_t commit_timeout_ms = 0;
};

// Everything a put request carries besides the bytes; `lengths` has one item an entry of the run.
struct PutFields {
  PutHead head;
  uint32_t depth = 0;                                    // of key 0 of the call
  const std::vector<std::string_view>* texts = nullptr;  // one a key of the call, or null
  bool with_digests = false;                             // follow the pieces of a PULL
  wire::KeepWish keep;  // sent where it is not normal, which every segment takes them for
};
void write_put(wire::Writer& body, const KeyBlock& keys, const EntryRun& run, const PutFields& fields,
               const std::vector<uint32_t>& lengths);

constexpr size_t kStatusesHeadBytes = 8;
// One status an entry; codes this client does not know read as INTERNAL.
std::vector<wire::Status> read_statuses(const FrameReply& reply, size_t entry_count);

// The answer to a PUT or PULL: what became of each entry, and the journal number after which the request is durable;
// 0 where there is none, or the segment does not say. `not_kept`: entries that it has, but does not retain as it was
// asked to.
struct PutAnswer {
  std::vector<wire::Status> statuses;
  uint64_t journal_seq = 0;
  uint32_t not_kept = 0;
};
constexpr size_t kPutTailBytes = 16;  // what may follow the statuses
PutAnswer read_put_reply(const FrameReply& reply, size_t entry_count);

constexpr size_t kGetEntryBytes = 16;
struct GetAnswer {
  wire::Status status;
  uint32_t digest;
};
// An OK entry has exactly the expected length, and the payload exactly the bytes of the OK entries.
std::vector<GetAnswer> read_get_reply(const FrameReply& reply, const std::vector<uint32_t>& expected_lengths);

struct PoolGeometry {
  uint64_t map_bytes = 0;
  uint64_t table_offset = 0;
  uint32_t slot_count = 0;
  uint32_t slot_bytes = 0;
  PeerId pool_id{};
};
constexpr size_t kAttachFieldsBytes = 40;
constexpr uint32_t kSlotHeaderBytes = 128;
PoolGeometry read_attach_reply(const FrameReply& reply);

constexpr size_t kLocateEntryBytes = 32;
struct Location {
  wire::Status status;
  uint64_t offset;
  uint64_t generation;
  uint32_t digest;
  uint32_t slot;
};
// An OK entry has the expected length, lies wholly in the map, and names a slot of the table with a stable generation.
std::vector<Location> read_locate_reply(const FrameReply& reply,
                                        const std::vector<uint32_t>& expected_lengths,
                                        const PoolGeometry& geometry);

// Any u16 or u8 status as one of ours.
wire::Status known_status(unsigned code);

}  // namespace kvstore::data_codec
