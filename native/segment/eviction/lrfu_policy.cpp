// LRFU: an object is worth the sum of its uses, each of which counts for half as much after every half-life.
// The memory is the binary logarithm of that sum at the last use, in eighths.
#include <algorithm>
#include <cmath>

#include "segment/eviction/policies.hpp"

namespace kvstore {
namespace {

class LrfuRanking final : public Ranking {
 public:
  uint8_t first_seen() const override { return 0; }
  uint8_t seen_again(uint8_t memory, double gap, double objects, bool) const override {
    const double uses = 1 + std::exp2(memory / 8.0 - gap / half_life(objects));
    return static_cast<uint8_t>(std::min(127.0, std::log2(uses) * 8));
  }
  uint8_t better(uint8_t a, uint8_t b) const override { return std::max(a, b); }
  double worth(const Standing& s) const override { return s.memory / 8.0 - s.age / half_life(s.objects); }

 private:
  // In the time in which as many objects come or are used as twice what fits, half of the past is forgotten.
  static double half_life(double objects) { return 2 * objects; }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lrfu_policy(uint32_t slot_count) {
  static const LrfuRanking ranking;
  return std::make_unique<RankedPolicy>(slot_count, ranking);
}

}  // namespace kvstore
