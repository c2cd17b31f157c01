// A cache of so many objects that one policy rules: what the tests of policies play their loads on.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "protocol/keys.hpp"
#include "segment/eviction/eviction_policy.hpp"

namespace kvstore::testing {

class PlayedCache {
 public:
  PlayedCache(EvictionPolicy& policy, uint32_t objects_max) : policy_(policy), who_(objects_max) {
    for (uint32_t slot = objects_max; slot-- > 0;) free_.push_back(slot);
  }

  bool has(uint64_t object) const { return slots_.count(object) != 0; }
  uint32_t slot(uint64_t object) const { return slots_.at(object); }
  // True: it was there.
  bool access(uint64_t object, uint32_t depth = 0, Keep keep = Keep::kNormal) {
    const auto found = slots_.find(object);
    if (found != slots_.end()) {
      policy_.on_use(found->second);
      policy_.on_keep(found->second, keep);
      return true;
    }
    if (free_.empty()) evict();
    const uint32_t slot = free_.back();
    free_.pop_back();
    slots_[object] = slot;
    who_[slot] = object;
    policy_.on_insert({slot, mix64(object + 1), 1, depth, keep});
    return false;
  }
  // The pages [first, first + count) of one prefix, in one batch; returns how many were there.
  uint32_t access_prefix(uint64_t prefix, uint32_t first, uint32_t count, Keep keep = Keep::kNormal) {
    uint32_t hits = 0;
    for (uint32_t depth = first + count; depth-- > first;)
      hits += access(prefix << 20 | depth, depth, keep) ? 1 : 0;
    return hits;
  }
  uint64_t evict() {
    const uint32_t victim = policy_.coldest();
    policy_.on_evict(victim);
    free_.push_back(victim);
    slots_.erase(who_[victim]);
    return who_[victim];
  }

 private:
  EvictionPolicy& policy_;
  std::unordered_map<uint64_t, uint32_t> slots_;
  std::vector<uint64_t> who_;
  std::vector<uint32_t> free_;
};

}  // namespace kvstore::testing
