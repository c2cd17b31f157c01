// The order in which sealed objects are given up. A policy only ranks: what may not be evicted now (pinned,
// being read) is the object table's business. A new policy is one file with a factory, and one line in the
// table of eviction_policy.cpp. Not thread-safe: the owner locks. Slots are below the slot_count given to the
// factory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "segment/slot_table.hpp"

namespace kvstore {

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // A sealed object arrives. `depth` is the position of its page in the prefix: of two that are alike, the
  // deeper one is the better victim. Batches are reported deepest first, so that recency alone already
  // prefers to evict tails.
  virtual void on_insert(uint32_t slot, uint64_t size_bytes, uint32_t depth) = 0;
  virtual void on_use(uint32_t slot) = 0;
  // coldest() was offered this slot but it may not be evicted now: rank it so that the next call offers
  // another one.
  virtual void on_spare(uint32_t slot) = 0;
  virtual void on_remove(uint32_t slot) = 0;
  // The next victim, still ranked; kNoSlot when there is none.
  virtual uint32_t coldest() const = 0;
};

// Throws std::invalid_argument, naming the known policies, for any other name.
std::unique_ptr<EvictionPolicy> make_eviction_policy(const std::string& name, uint32_t slot_count);

// Factories, one a policy file.
std::unique_ptr<EvictionPolicy> make_lru_policy(uint32_t slot_count);

}  // namespace kvstore
