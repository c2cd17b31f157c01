// Parts of a call's entries, as the wire wants them: key blocks (keys x shards), runs, stripes. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "protocol/keys.hpp"
#include "protocol/wire.hpp"

namespace kvstore {

// Some keys x some shards of a call.
struct EntryBlock {
  std::vector<uint32_t> keys;    // ascending
  std::vector<uint32_t> shards;  // ascending

  uint32_t entry(size_t ordinal, uint32_t call_shard_count) const {
    return keys[ordinal / shards.size()] * call_shard_count + shards[ordinal % shards.size()];
  }
  size_t entry_count() const { return keys.size() * shards.size(); }
};

// A stretch of a block's keys: what one request carries.
struct EntryRun {
  const EntryBlock* block = nullptr;
  size_t key_begin = 0;
  size_t key_end = 0;
  uint64_t bytes = 0;

  size_t key_count() const { return key_end - key_begin; }
  size_t entry_count() const { return key_count() * block->shards.size(); }
  // The run's entries, in wire order.
  std::vector<uint32_t> entries(uint32_t call_shard_count) const;
};

struct RunLimits {
  uint64_t bytes =
      0;  // a run is closed when it reaches this many (a single larger key makes a run of its own)
  size_t entries = 0;  // and never holds more entries than this, unless a single key does
};

// `entries` (ascending, no duplicates) as few blocks: keys that want the same shards share one.
std::vector<EntryBlock> make_blocks(const std::vector<uint32_t>& entries, uint32_t call_shard_count);

// Cuts the blocks into at most `stripes` lists of runs of about the same number of bytes. The blocks must outlive the runs.
std::vector<std::vector<EntryRun>> cut_stripes(const std::vector<EntryBlock>& blocks,
                                               uint32_t call_shard_count, size_t stripes,
                                               const RunLimits& limits,
                                               const std::function<uint64_t(uint32_t entry)>& entry_bytes);

// The run as a key block on the wire; read_key_block() reads it.
void write_run(wire::Writer& writer, const KeyBlock& keys, const EntryRun& run);

}  // namespace kvstore
