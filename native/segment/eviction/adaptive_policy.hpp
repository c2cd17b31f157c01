// The default: the interval ranking, whose patience, and trust in what it is asked to retain or demote, are
// chosen while it runs. For each candidate a shadow cache plays a sample of all objects; the one that hits most
// rules. All candidates rank by the same memories, so that changing over takes effect at once and costs nothing.
#pragma once

#include <array>
#include <memory>

#include "segment/eviction/interval_ranking.hpp"
#include "segment/eviction/shadow_cache.hpp"

namespace kvstore {

class AdaptivePolicy final : public EvictionPolicy {
 public:
  // patience, trust
  static constexpr std::array<IntervalRanking::Parameters, 8> kCandidates = {
      {{0, 0}, {2.5, 0}, {5, 0}, {12, 0}, {2, 2}, {7, 6}, {20, 4}, {20, 1}}};
  static constexpr size_t kFirst =
      7;  // rules until something is known: what is wanted is not believed unseen
  static constexpr uint32_t kShadowObjects = 4096;

  explicit AdaptivePolicy(uint32_t slot_count);

  void grow(uint32_t slot_count) override { policy_.grow(slot_count); }
  void on_insert(const Arrival& arrival) override;
  void on_use(uint32_t slot) override;
  void on_keep(uint32_t slot, Keep keep) override;
  void on_spare(uint32_t slot) override { policy_.on_spare(slot); }
  void on_evict(uint32_t slot) override { policy_.on_evict(slot); }
  void on_remove(uint32_t slot) override;
  uint32_t coldest() override { return policy_.coldest(); }

  // Of kCandidates.
  size_t ruling() const { return ruling_; }
  uint32_t shadow_objects(size_t candidate) const { return candidates_[candidate]->shadow.object_count(); }

 private:
  struct Candidate {
    explicit Candidate(const IntervalRanking::Parameters& parameters)
        : ranking(parameters), shadow(2 * kShadowObjects, ranking) {}
    IntervalRanking ranking;
    ShadowCache shadow;
    double hits = 0;  // older ones count for less
  };

  bool is_sampled(uint64_t id) const;
  void access(uint64_t id, uint32_t depth, Keep keep);
  void choose();
  void thin_out();

  IntervalRanking ranking_;
  RankedPolicy policy_;
  std::array<std::unique_ptr<Candidate>, kCandidates.size()> candidates_;
  size_t ruling_ = kFirst;
  uint32_t sample_shift_ = 0;            // one object in 2^this is sampled
  size_t thinned_ = kCandidates.size();  // shadows that have dropped what is no longer sampled
  uint32_t accesses_ = 0;                // of sampled objects since the last choice
};

}  // namespace kvstore
