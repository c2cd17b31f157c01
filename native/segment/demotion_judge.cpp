#include "segment/demotion_judge.hpp"

#include <algorithm>
#include <exception>

namespace kvstore {
namespace {

constexpr uint64_t kWindowPools = 4;       // as many pools full of objects
constexpr uint64_t kWindowMin = 512;       // objects
constexpr uint64_t kWatchedWanted = 4096;  // begun within a window
constexpr double kFade = 0.998;            // of a record, for each page that was watched to its end
constexpr double kReturnsMin = 6;          // fewer pages that came back are no evidence
constexpr double kTrustedBelow = 0.7;      // of the others' rate: demotions are heeded again
constexpr uint32_t kOverdueSteps = 4;      // ended with each object: more than can begin

}  // namespace

uint64_t DemotionJudge::as_number(const NamespaceId& ns) {
  uint64_t number;
  std::memcpy(&number, ns.data(), sizeof(number));
  return number;
}

bool DemotionJudge::is_watched_kind(uint64_t id) const {
  return shift_ == 0 || mix64(id ^ secret_) >> (64 - shift_) == 0;
}

bool DemotionJudge::heeds(const NamespaceId& ns) const {
  const auto record = records_.find(as_number(ns));
  return record == records_.end() || record->second.heeded;
}

void DemotionJudge::demoted(const NamespaceId& ns, uint64_t id) noexcept {
  const uint64_t number = as_number(ns);
  try {
    if (records_.count(number) == 0) {
      if (records_.size() >= kNamespacesMax) records_.erase(records_.begin());
      records_.emplace(number, Record{});
    }
  } catch (const std::exception&) {
    return;  // out of memory: heeded, and not judged
  }
  const auto watch = watches_.find(id);
  if (watch != watches_.end() && watch->second.ns == number) watch->second.kind = kDemotedPage;
}

void DemotionJudge::touched(const NamespaceId& ns, uint64_t id, Touch touch, uint32_t object_count) noexcept {
  ++now_;
  if (records_.empty()) return;
  const uint64_t window = std::max(kWindowMin, kWindowPools * object_count);
  if (window != window_) {
    window_ = window;
    for (shift_ = 0; window_ >> shift_ > kWatchedWanted;) ++shift_;
  }
  end_overdue();
  if (!is_watched_kind(id)) return;
  const uint64_t number = as_number(ns);
  if (records_.count(number) == 0) return;
  const auto old = watches_.find(id);
  if (old != watches_.end()) {
    const Watch ended = old->second;
    watches_.erase(old);
    conclude(ended, true);
  }
  if (touch != Touch::kCame || order_.size() >= kWatchedMax) return;
  try {
    order_.push_back({id, now_});
    watches_[id] = {number, now_, kOtherPage};
  } catch (const std::exception&) {  // out of memory: this one is not watched
  }
}

void DemotionJudge::end_overdue() {
  for (uint32_t step = 0; step < kOverdueSteps && !order_.empty(); ++step) {
    const Begun begun = order_.front();
    if (now_ - begun.since <= window_) return;
    order_.pop_front();
    const auto watch = watches_.find(begun.id);
    if (watch == watches_.end() || watch->second.since != begun.since) continue;
    const Watch ended = watch->second;
    watches_.erase(watch);
    conclude(ended, false);
  }
}

void DemotionJudge::conclude(const Watch& watch, bool returned) {
  const auto found = records_.find(watch.ns);
  if (found == records_.end()) return;
  Record& record = found->second;
  for (const Kind kind : {kDemotedPage, kOtherPage}) {
    record.seen[kind] *= kFade;
    record.returned[kind] *= kFade;
  }
  record.seen[watch.kind] += 1;
  record.returned[watch.kind] += returned;
  const double demoted = record.returned[kDemotedPage] / (record.seen[kDemotedPage] + 1);
  const double others = record.returned[kOtherPage] / (record.seen[kOtherPage] + 1);
  if (record.heeded)
    record.heeded = record.returned[kDemotedPage] < kReturnsMin || demoted <= others;
  else
    record.heeded = record.returned[kOtherPage] >= kReturnsMin && demoted < kTrustedBelow * others;
}

}  // namespace kvstore
