// An object table over memory of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "segment/object_fixture.hpp"
#include "segment/object_table.hpp"

namespace kvstore::testing {

// Ten objects fill it.
constexpr uint64_t kObject = 5120;

struct Table {
  static constexpr uint32_t kSlots = 32;
  static constexpr uint64_t kFirstChunk = (kSlots + 1) * sizeof(SlotHeader);
  static constexpr uint64_t kDataOffset = SlotTable::kFirstChunkOffset + 64 * sizeof(SlotHeader);

  explicit Table(uint64_t capacity = 10 * kObject, uint64_t pinned_bytes_max = 5 * kObject)
      : memory(new uint8_t[kDataOffset + capacity]()),
        objects(memory.get(), options(capacity, pinned_bytes_max)) {}

  static ObjectTable::Options options(uint64_t capacity, uint64_t pinned_bytes_max) {
    ObjectTable::Options options;
    options.first_chunk_bytes = kFirstChunk;
    options.data_offset = kDataOffset;
    options.capacity_bytes = capacity;
    options.eviction_policy = "lru";
    options.pinned_bytes_max = pinned_bytes_max;
    options.retention = {capacity, capacity};
    return options;
  }

  static Key key(int i, const NamespaceId& ns = kNs) {
    return {ns, 0, kWholeShard, string_hash(std::to_string(i))};
  }
  static Fingerprint fp(const Key& key) {
    return fingerprint(fingerprint_salt(key.ns, key.pool, key.shard), key.hash.data());
  }
  uint32_t add(int i, const NamespaceId& ns = kNs, uint32_t length = kObject, uint32_t depth = 0) {
    const uint32_t slot = objects.reserve(key(i, ns), length, depth, {}).slot;
    if (slot != kNoSlot) objects.seal(slot, fp(key(i, ns)), 1, 0, ++seq);
    return slot;
  }
  bool has(int i, const NamespaceId& ns = kNs) const {
    return objects.find(fp(key(i, ns)), key(i, ns)) != kNoSlot;
  }
  void hold(int i) { CHECK(objects.shards().hold(fp(key(i)), key(i), 0).slot != kNoSlot); }
  bool pin(int i, uint64_t now_ms, uint32_t pin_ms, const NamespaceId& ns = kNs) {
    const uint64_t before = objects.shards().pinned_bytes();
    CHECK(objects.shards().pin(fp(key(i, ns)), key(i, ns), now_ms, pin_ms) != ObjectShards::Pinned::kMiss);
    return objects.shards().pinned_bytes() > before;
  }
  bool unhold(uint32_t slot) {  // true: that freed its memory
    if (objects.shards().unhold(slot) != ObjectShards::Left::kRemoved) return false;
    objects.free_removed(slot);
    return true;
  }
  std::vector<JournalEntry> evict(uint64_t bytes, uint64_t now_ms = 1, uint32_t steps = 1000,
                                  uint32_t own_batch = 0) {
    std::vector<JournalEntry> removed;
    last = objects.evict(bytes, steps, now_ms, own_batch, seq + 1, removed);
    seq += removed.size();
    return removed;
  }

  std::unique_ptr<uint8_t[]> memory;
  ObjectTable objects;
  ObjectTable::Evicted last;
  uint64_t seq = 0;
};

}  // namespace kvstore::testing
