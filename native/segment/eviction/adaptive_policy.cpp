#include "segment/eviction/adaptive_policy.hpp"

#include <algorithm>
#include <cmath>

#include "protocol/keys.hpp"
#include "segment/eviction/policies.hpp"

namespace kvstore {
namespace {

constexpr uint64_t kSampleSalt = 0x5bd1e995a7c3f217u;  // any: the sample is not that of a bucket of a table
constexpr uint32_t kChoicesARoom = 16;  // in the time in which as many sampled objects are used as fit
constexpr double kHalfLifeRooms = 8;    // after which a hit counts for half
constexpr double kBetter = 1.01;        // by so much another one has to be better than the one that rules
constexpr double kBetterHits = 8;       // ... and by so many hits: what luck brings

}  // namespace

AdaptivePolicy::AdaptivePolicy(uint32_t slot_count)
    : ranking_(kCandidates[kFirst]), policy_(slot_count, ranking_) {
  for (size_t i = 0; i < kCandidates.size(); ++i)
    candidates_[i] = std::make_unique<Candidate>(kCandidates[i]);
}

bool AdaptivePolicy::is_sampled(uint64_t id) const {
  return (mix64(id ^ kSampleSalt) & ((uint64_t{1} << sample_shift_) - 1)) == 0;
}

void AdaptivePolicy::on_insert(const Arrival& arrival) {
  policy_.on_insert(arrival);
  if (is_sampled(arrival.id)) access(arrival.id, arrival.depth, arrival.keep);
}

void AdaptivePolicy::on_use(uint32_t slot) {
  policy_.on_use(slot);
  const uint64_t id = policy_.id(slot);
  if (is_sampled(id)) access(id, policy_.depth(slot), policy_.keep(slot));
}

void AdaptivePolicy::on_keep(uint32_t slot, Keep keep) {
  policy_.on_keep(slot, keep);
  const uint64_t id = policy_.id(slot);
  if (!is_sampled(id)) return;
  for (const auto& candidate : candidates_) candidate->shadow.keep(id, keep);
}

void AdaptivePolicy::on_remove(uint32_t slot) {
  const uint64_t id = policy_.id(slot);
  policy_.on_remove(slot);
  if (!is_sampled(id)) return;
  for (const auto& candidate : candidates_) candidate->shadow.remove(id);
}

void AdaptivePolicy::access(uint64_t id, uint32_t depth, Keep keep) {
  thin_out();
  const uint32_t room = std::max(1u, policy_.object_count() >> sample_shift_);
  for (const auto& candidate : candidates_)
    candidate->hits += candidate->shadow.access(id, depth, keep, room) ? 1 : 0;
  if (++accesses_ * kChoicesARoom >= room) choose();
}

// One shadow a call, so that no call takes long; those that are not thinned out yet hold too much for a moment.
void AdaptivePolicy::thin_out() {
  if (thinned_ == kCandidates.size() && policy_.object_count() >> sample_shift_ > kShadowObjects) {
    ++sample_shift_;
    thinned_ = 0;
  }
  if (thinned_ == kCandidates.size()) return;
  candidates_[thinned_++]->shadow.resample([this](uint64_t id) { return is_sampled(id); });
}

void AdaptivePolicy::choose() {
  accesses_ = 0;
  size_t best = ruling_;
  for (size_t i = 0; i < candidates_.size(); ++i)
    if (candidates_[i]->hits > candidates_[best]->hits) best = i;
  const double needed =
      std::max(candidates_[ruling_]->hits * kBetter, candidates_[ruling_]->hits + kBetterHits);
  if (candidates_[best]->hits > needed) {
    ruling_ = best;
    ranking_.set(kCandidates[best]);
    policy_.reconsider();
  }
  for (const auto& candidate : candidates_)
    candidate->hits *= std::exp2(-1.0 / (kHalfLifeRooms * kChoicesARoom));
}

std::unique_ptr<EvictionPolicy> make_adaptive_policy(uint32_t slot_count) {
  return std::make_unique<AdaptivePolicy>(slot_count);
}

}  // namespace kvstore
