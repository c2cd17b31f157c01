#include "segment/eviction/shadow_cache.hpp"

#include <algorithm>

#include "protocol/keys.hpp"

namespace kvstore {
namespace {

size_t bucket_count_for(uint32_t objects) {
  size_t n = 16;
  while (n < size_t{objects} * 2) n *= 2;
  return n;
}

}  // namespace

ShadowCache::ShadowCache(uint32_t objects_max, const Ranking& ranking)
    : policy_(objects_max, ranking), ids_(objects_max), buckets_(bucket_count_for(objects_max), kNoSlot) {
  free_.reserve(objects_max);
  for (uint32_t slot = objects_max; slot-- > 0;) free_.push_back(slot);
}

size_t ShadowCache::place_of(uint64_t id) const {
  const size_t mask = buckets_.size() - 1;
  size_t at = mix64(id) & mask;
  while (buckets_[at] != kNoSlot && ids_[buckets_[at]] != id) at = (at + 1) & mask;
  return at;
}

bool ShadowCache::access(uint64_t id, uint32_t depth, Keep keep, uint32_t room) {
  const uint32_t found = buckets_[place_of(id)];
  if (found != kNoSlot) {
    policy_.on_use(found);
    policy_.on_keep(found, keep);
    return true;
  }
  room = std::clamp<uint32_t>(room, 1, static_cast<uint32_t>(ids_.size()));
  // Two at a time where it has to shrink, so that no call takes long.
  for (int i = 0; i < 2 && policy_.object_count() >= room; ++i) drop(policy_.coldest(), true);
  if (free_.empty()) return false;
  const uint32_t slot = free_.back();
  free_.pop_back();
  ids_[slot] = id;
  buckets_[place_of(id)] = slot;
  policy_.on_insert({slot, id, 0, depth, keep});
  return false;
}

void ShadowCache::keep(uint64_t id, Keep keep) {
  const uint32_t slot = buckets_[place_of(id)];
  if (slot != kNoSlot) policy_.on_keep(slot, keep);
}

void ShadowCache::remove(uint64_t id) {
  const uint32_t slot = buckets_[place_of(id)];
  if (slot != kNoSlot) drop(slot, false);
}

void ShadowCache::drop(uint32_t slot, bool evicted) {
  const size_t mask = buckets_.size() - 1;
  size_t hole = place_of(ids_[slot]);
  for (size_t at = (hole + 1) & mask; buckets_[at] != kNoSlot; at = (at + 1) & mask) {
    const size_t wanted = mix64(ids_[buckets_[at]]) & mask;
    if (((at - wanted) & mask) < ((at - hole) & mask)) continue;
    buckets_[hole] = buckets_[at];
    hole = at;
  }
  buckets_[hole] = kNoSlot;
  if (evicted)
    policy_.on_evict(slot);
  else
    policy_.on_remove(slot);
  free_.push_back(slot);
}

}  // namespace kvstore
