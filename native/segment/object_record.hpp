// What a segment keeps of each slot, in memory that nobody else sees.
#pragma once

#include <cstdint>

#include "protocol/keys.hpp"
#include "segment/eviction/eviction_policy.hpp"
#include "segment/slot_table.hpp"

namespace kvstore {

// Written under the store's main mutex. What a reader looks at (offset, length, text_bytes) does not change from when
// the slot is put into the index until its memory is free: the shard's mutex orders both.
struct ObjectRecord {
  uint64_t seq = 0;     // the journal number of its ADD
  uint64_t offset = 0;  // in the map
  NamespaceId ns{};
  uint32_t length = 0;
  uint32_t next_free = 0;  // of its chunk; 0: it is the last one
  uint32_t used_at = 0;    // in objects that came or were used by then
  uint32_t batch = 0;      // the put batch that has brought it, or was told that it is there; 0: none
  uint16_t text_bytes = 0;
  SlotState state = SlotState::kFree;
  Keep keep = Keep::kNormal;

  uint64_t stored_bytes() const { return uint64_t{length} + text_bytes; }
};

// Guarded by the mutex of the shard that the slot's fingerprint is in.
struct ReaderRecord {
  uint32_t readers = 0;
  bool removed = false;  // sealed, but not findable: waits for its readers to leave
};

}  // namespace kvstore
