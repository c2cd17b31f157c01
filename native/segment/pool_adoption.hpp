// Fills an object table from a pool that an earlier process has left, and has the journal say what the directory has not heard.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "segment/journal.hpp"
#include "segment/kept_pool.hpp"
#include "segment/object_table.hpp"
#include "segment/pool_scan.hpp"

namespace kvstore {

// What a pool began with.
struct PoolContent {
  bool warm = false;
  std::string fresh_reason;  // of one that is not
  uint64_t objects = 0;
  uint64_t object_bytes = 0;
  uint64_t scanned_bytes = 0;
  double scan_seconds = 0;
  std::array<uint64_t, PoolScan::kReasons> dropped{};
  bool needs_inventory = false;
};

struct AdoptionOptions {
  uint64_t data_offset = 0;
  uint64_t capacity_bytes = 0;
  uint64_t first_chunk_bytes = 0;
  bool verify_digests = true;
  PoolProgress* progress = nullptr;
};

// `objects` was made for a pool that was kept, and nothing was done with it; the journal goes on from the pool's ring. Killed
// in the middle of it, the next process finds what this one found. Throws as scan_pool does.
PoolContent adopt_pool(KeptPool& pool, ObjectTable& objects, Journal& journal,
                       const AdoptionOptions& options);

}  // namespace kvstore
