// What an earlier process has left in a pool: looks at every slot header and at every object's bytes, and says which objects are
// to be served again and what the directory has to be told. Changes nothing.
//
// The process may have been killed at any instruction. An object comes like this: its header says sealed, with the number that
// its ADD is to get, then the ADD is in the journal ring. It goes like this: its REMOVE is in the ring, then its header says so.
// So one that is sealed with a number above the ring's last lacks its ADD, and one that has a REMOVE behind its number was about
// to go.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "segment/journal_entry.hpp"
#include "segment/pool.hpp"
#include "segment/slot_table.hpp"

namespace kvstore {

// The slots of one chunk: that of headers[i] has the number first_slot + i.
struct ScannedChunk {
  uint32_t first_slot = 0;
  uint32_t slot_count = 0;
  const SlotHeader* headers = nullptr;
};

struct ScanOptions {
  uint64_t data_offset = 0;  // objects lie in [data_offset, data_offset + capacity_bytes)
  uint64_t capacity_bytes = 0;
  // Of the journal as it was found: its last number, and what it says up to there.
  uint64_t last_seq = 0;
  std::vector<JournalEntry> newest_entries;
  bool verify_digests = true;
  unsigned threads = 0;              // 0: as many as there are cores, at most 8
  PoolProgress* progress = nullptr;  // null: nobody watches
};

struct PoolScan {
  // Why an object that was there, or may have been, is not served again.
  enum Reason : uint8_t {
    kWriting,      // its writer had not finished
    kChanging,     // killed in the middle of a change of its header
    kRemoved,      // gone, or about to go
    kQuarantined,  // its bytes had gone bad before
    kDamaged,      // its header is not what was written there
    kMisplaced,    // it lies outside of the pool
    kBadBytes,     // its bytes are not those of its digest
    kReasons
  };
  static const char* name(Reason reason);

  struct Object {
    uint32_t slot;
    uint64_t seq;  // of its ADD; above the journal's last one: that has not got it
    Fingerprint fp;
    NamespaceId ns;
    uint32_t length;
  };
  std::vector<Object> objects;         // to be served again, the oldest first; no fingerprint twice
  std::vector<JournalEntry> removals;  // of what is not there, and the directory may know
  // Something has gone that nobody can name: the directory has to hear of all that is there.
  bool needs_inventory = false;

  std::array<uint64_t, kReasons> dropped{};
  uint64_t object_bytes = 0;
  uint64_t scanned_bytes = 0;
  double seconds = 0;
};

// Throws std::system_error with ECANCELED within the time of a few MiB, and std::bad_alloc.
PoolScan scan_pool(const uint8_t* base, const std::vector<ScannedChunk>& chunks, const ScanOptions& options);

}  // namespace kvstore
