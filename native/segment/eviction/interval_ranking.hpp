// What an object is worth by the interval between its uses: one that came back is expected again after about as
// long, and is given up when that is too long or long past. An object that was seen once has no interval: it
// goes before all that have, but for those that were not used for `patience` times as long as it takes to use
// as many objects as there are. Patience decides how far the past is believed: with little of it this is nearly
// LRU, with much it keeps what was ever used twice.
//
// The memory is 0 for what was seen once; else the interval (a moving average) in half octaves, from 1, and 64
// more when it was seen three times or more.
#pragma once

#include "segment/eviction/ranking.hpp"

namespace kvstore {

class IntervalRanking final : public Ranking {
 public:
  struct Parameters {
    double patience = 6;  // 0: LRU
    // So many times sooner than others an object is expected that is wanted. 1: only demoting is heeded; 0: what
    // was asked for is ignored, demoting too.
    double trust = 4;
  };

  explicit IntervalRanking(const Parameters& parameters) : parameters_(parameters) {}
  void set(const Parameters& parameters) { parameters_ = parameters; }

  uint8_t first_seen() const override { return 0; }
  uint8_t seen_again(uint8_t memory, double gap, double objects, bool evicted) const override;
  uint8_t better(uint8_t a, uint8_t b) const override;
  double worth(const Standing& standing) const override;
  bool weighs_keep() const override { return true; }

 private:
  Parameters parameters_;
};

}  // namespace kvstore
