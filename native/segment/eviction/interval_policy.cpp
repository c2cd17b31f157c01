// The interval ranking with one setting that is good for most loads.
#include "segment/eviction/interval_ranking.hpp"
#include "segment/eviction/policies.hpp"

namespace kvstore {

std::unique_ptr<EvictionPolicy> make_interval_policy(uint32_t slot_count) {
  static const IntervalRanking ranking({});
  return std::make_unique<RankedPolicy>(slot_count, ranking);
}

}  // namespace kvstore
