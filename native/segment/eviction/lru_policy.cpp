// Least recently used. It remembers nothing of an object but when it was last used.
#include "segment/eviction/policies.hpp"

namespace kvstore {
namespace {

class LruRanking final : public Ranking {
 public:
  uint8_t first_seen() const override { return 0; }
  uint8_t seen_again(uint8_t, double, double, bool) const override { return 0; }
  uint8_t better(uint8_t, uint8_t) const override { return 0; }
  double worth(const Standing& s) const override { return -s.age; }
  bool wants_ghosts() const override { return false; }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru_policy(uint32_t slot_count) {
  static const LruRanking ranking;
  return std::make_unique<RankedPolicy>(slot_count, ranking);
}

}  // namespace kvstore
