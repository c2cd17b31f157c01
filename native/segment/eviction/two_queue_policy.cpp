// 2Q: what comes is on probation, and stays so however often it is used, for uses shortly after one another
// say little. What comes back after it was evicted belongs to the main queue. A tenth of the objects are on
// probation; above that the oldest of them goes, else the oldest of the main queue.
#include <algorithm>

#include "segment/eviction/policies.hpp"

namespace kvstore {
namespace {

class TwoQueueRanking final : public Ranking {
 public:
  uint8_t first_seen() const override { return kProbation; }
  uint8_t seen_again(uint8_t memory, double, double, bool evicted) const override {
    return evicted ? kMain : memory;
  }
  uint8_t better(uint8_t a, uint8_t b) const override { return std::max(a, b); }
  double worth(const Standing& s) const override {
    if (s.memory == kMain) return 1;
    return s.fraction > kProbationFraction ? 0 : 2;
  }

 private:
  static constexpr uint8_t kProbation = 0;
  static constexpr uint8_t kMain = 1;
  static constexpr double kProbationFraction = 0.1;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_two_queue_policy(uint32_t slot_count) {
  static const TwoQueueRanking ranking;
  return std::make_unique<RankedPolicy>(slot_count, ranking);
}

}  // namespace kvstore
