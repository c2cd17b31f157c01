// A small cache that holds no bytes: what would be hit, had the segment been ruled by another ranking? It sees
// a sample of all objects, chosen by id, and has room for the same sample of them, so that it hits as often as
// the whole would. Not thread-safe: the owner locks.
#pragma once

#include <vector>

#include "segment/eviction/ranked_policy.hpp"

namespace kvstore {

class ShadowCache {
 public:
  // The ranking must outlive it.
  ShadowCache(uint32_t objects_max, const Ranking& ranking);

  // The object was used or came; there is room for `room` of them now. True: it was there.
  bool access(uint64_t id, uint32_t depth, Keep keep, uint32_t room);
  void keep(uint64_t id, Keep keep);
  void remove(uint64_t id);
  // Drops what is_sampled(id) is false for.
  template <typename IsSampled>
  void resample(IsSampled&& is_sampled) {
    for (uint32_t slot = 0; slot < ids_.size(); ++slot)
      if (policy_.has(slot) && !is_sampled(ids_[slot])) drop(slot, false);
  }
  uint32_t object_count() const { return policy_.object_count(); }

 private:
  size_t place_of(uint64_t id) const;  // in buckets_: where it is, or the empty one where its probe ends
  void drop(uint32_t slot, bool evicted);

  RankedPolicy policy_;
  std::vector<uint64_t> ids_;  // by slot
  std::vector<uint32_t> free_;
  std::vector<uint32_t> buckets_;  // open addressing: slots
};

}  // namespace kvstore
