#include "protocol/entry_blocks.hpp"

#include <algorithm>
#include <map>

namespace kvstore {

std::vector<uint32_t> EntryRun::entries(uint32_t call_shard_count) const {
  std::vector<uint32_t> all;
  all.reserve(entry_count());
  for (size_t k = key_begin; k < key_end; ++k)
    for (const uint32_t shard : block->shards) all.push_back(block->keys[k] * call_shard_count + shard);
  return all;
}

std::vector<EntryBlock> make_blocks(const std::vector<uint32_t>& entries, uint32_t call_shard_count) {
  static_assert(wire::kShardsMax <= 64, "the shards of a key are a 64-bit mask");
  std::vector<EntryBlock> blocks;
  std::map<uint64_t, size_t> block_of_mask;
  for (size_t i = 0; i < entries.size();) {
    const uint32_t key = entries[i] / call_shard_count;
    uint64_t mask = 0;
    for (; i < entries.size() && entries[i] / call_shard_count == key; ++i)
      mask |= uint64_t{1} << (entries[i] % call_shard_count);
    const auto [at, fresh] = block_of_mask.emplace(mask, blocks.size());
    if (fresh) {
      blocks.emplace_back();
      for (uint32_t s = 0; s < call_shard_count; ++s)
        if (mask >> s & 1) blocks.back().shards.push_back(s);
    }
    blocks[at->second].keys.push_back(key);
  }
  return blocks;
}

std::vector<std::vector<EntryRun>> cut_stripes(const std::vector<EntryBlock>& blocks,
                                               uint32_t call_shard_count, size_t stripes,
                                               const RunLimits& limits,
                                               const std::function<uint64_t(uint32_t)>& entry_bytes) {
  uint64_t total = 0;
  for (const EntryBlock& block : blocks)
    for (size_t i = 0; i < block.entry_count(); ++i) total += entry_bytes(block.entry(i, call_shard_count));
  stripes = std::max<size_t>(stripes, 1);

  std::vector<std::vector<EntryRun>> out(1);
  uint64_t done = 0;  // bytes in closed and open runs
  for (const EntryBlock& block : blocks) {
    EntryRun run{&block, 0, 0, 0};
    const auto close_run = [&] {
      if (run.key_count() > 0) out.back().push_back(run);
      run = EntryRun{&block, run.key_end, run.key_end, 0};
    };
    for (size_t k = 0; k < block.keys.size(); ++k) {
      uint64_t key_bytes = 0;
      for (const uint32_t shard : block.shards)
        key_bytes += entry_bytes(block.keys[k] * call_shard_count + shard);
      const bool full = run.bytes + key_bytes > limits.bytes ||
                        (run.key_count() + 1) * block.shards.size() > limits.entries;
      if (run.key_count() > 0 && full) close_run();
      // The boundary of stripe i of n lies at i/n of the bytes.
      if (out.size() < stripes && done > 0 && done * stripes >= total * out.size()) {
        close_run();
        out.emplace_back();
      }
      run.key_end = k + 1;
      run.bytes += key_bytes;
      done += key_bytes;
    }
    close_run();
  }
  return out;
}

void write_run(wire::Writer& writer, const KeyBlock& keys, const EntryRun& run) {
  writer.raw(keys.ns.data(), keys.ns.size())
      .u16(keys.pool)
      .u16(static_cast<uint16_t>(run.block->shards.size()))
      .u32(static_cast<uint32_t>(run.key_count()));
  for (const uint32_t shard : run.block->shards)
    writer.raw(keys.shards + size_t{shard} * kShardBytes, kShardBytes);
  for (size_t k = run.key_begin; k < run.key_end; ++k)
    writer.raw(keys.hashes + size_t{run.block->keys[k]} * kHashBytes, kHashBytes);
}

}  // namespace kvstore
