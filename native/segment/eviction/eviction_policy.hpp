// The order in which sealed objects are given up. A policy only ranks: what may not be evicted now (pinned,
// being read) is the object table's business, and what nobody wants any more (its time is over, its namespace
// is retired or over its budget) goes without being asked for here. A new policy is one file with a factory,
// its declaration in policies.hpp, and one line in the table of eviction_policy.cpp. Not thread-safe: the owner locks.
//
// Time, for a policy, is the number of objects that came or were used: no clock. Batches are reported deepest
// first, so that of two pages that were used together the one nearer to the head of its prefix is the later
// victim. Every call is of bounded work, whatever the number of slots.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "segment/slot_table.hpp"

namespace kvstore {

// What was asked for an object. Retained ones are victims only when there is nothing else, whatever the policy: budgets
// bound how many there are. Demoted ones go before others, and wanted ones (to be retained, but over a budget) after them,
// as far as the policy believes in it.
enum class Keep : uint8_t { kDemoted, kNormal, kWanted, kRetained };

struct Arrival {
  uint32_t slot = kNoSlot;  // below the number of slots that the policy was made for or has grown to
  uint64_t id = 0;          // of the object, and alike after it was evicted: half of its fingerprint
  uint64_t size_bytes = 0;
  uint32_t depth = 0;  // the position of its page in the prefix: of two that are alike, the deeper one goes
  Keep keep = Keep::kNormal;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // There are this many slots from now on, never fewer than before.
  virtual void grow(uint32_t slot_count) = 0;
  // A sealed object arrives, in a slot that is not ranked.
  virtual void on_insert(const Arrival& arrival) = 0;
  virtual void on_use(uint32_t slot) = 0;
  virtual void on_keep(uint32_t slot, Keep keep) = 0;
  // coldest() was offered this slot but it may not be evicted now: rank it so that the next call offers
  // another one.
  virtual void on_spare(uint32_t slot) = 0;
  // The object was given up because space was short: it may be missed, and a policy may remember its id.
  virtual void on_evict(uint32_t slot) = 0;
  // The object is gone for another reason, and nothing is to be learned from it.
  virtual void on_remove(uint32_t slot) = 0;
  // The next victim, still ranked; kNoSlot when there is none. The same one until something else is reported.
  virtual uint32_t coldest() = 0;
};

// Throws std::invalid_argument, naming the known policies, for any other name.
std::unique_ptr<EvictionPolicy> make_eviction_policy(const std::string& name, uint32_t slot_count);

}  // namespace kvstore
