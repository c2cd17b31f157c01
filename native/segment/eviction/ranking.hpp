// How a ranked policy tells what an object is worth: by seven bits that it remembers of the object's past, and
// by the time since its last use. Rankings are values without objects of their own: the lists are the ranked
// policy's. Times count accesses.
#pragma once

#include <cstdint>

#include "segment/eviction/eviction_policy.hpp"

namespace kvstore {

class Ranking {
 public:
  // Objects with the same memory and the same `keep` are alike but for their ages: the oldest goes first.
  struct Standing {
    Keep keep = Keep::kNormal;
    uint8_t memory = 0;
    double age = 0;       // since the last use of the oldest of them
    double objects = 0;   // that there are in all: what fits
    double fraction = 0;  // of them that are alike
  };

  virtual ~Ranking() = default;
  // Of an object that comes for the first time, as far as anybody remembers. Below 128, as all memories.
  virtual uint8_t first_seen() const = 0;
  // Of one with this memory that is used `gap` after its last use; `evicted`: it comes back, `gap` after it was
  // evicted.
  virtual uint8_t seen_again(uint8_t memory, double gap, double objects, bool evicted) const = 0;
  // The best that can be said of an object of which both are known; first_seen() adds nothing.
  virtual uint8_t better(uint8_t a, uint8_t b) const = 0;
  // The lowest goes first. Must not rise with age.
  virtual double worth(const Standing& standing) const = 0;
  // Whether worth() looks at `keep`. If not, demoted objects go before all others, and wanted ones are as any other.
  // Retained ones go last with all rankings.
  virtual bool weighs_keep() const { return false; }
  // Whether what it remembers of evicted objects is of use to it.
  virtual bool wants_ghosts() const { return true; }
};

}  // namespace kvstore
