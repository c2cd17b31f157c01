#include "segment/disk/disk_health.hpp"

namespace kvstore {

bool DiskHealth::hangs(Clock::time_point now) const {
  // Numbers grow with time: the first is the oldest.
  return !calls_.empty() && now - calls_.begin()->second > slow_;
}

bool DiskHealth::allows(Clock::time_point now) {
  const MutexLock lock(mutex_);
  if (hangs(now)) return false;
  if (raised_ == Alarm::kNone) return true;
  if (probed_at_ != Clock::time_point::min() && now - probed_at_ < kProbeEvery) return false;
  probed_at_ = now;
  return true;
}

bool DiskHealth::is_well(Clock::time_point now) const { return alarm(now) == Alarm::kNone; }

uint64_t DiskHealth::begin(Clock::time_point now) {
  const MutexLock lock(mutex_);
  calls_.emplace(next_call_, now);
  return next_call_++;
}

void DiskHealth::end(uint64_t call, bool ok, Clock::time_point now) {
  const MutexLock lock(mutex_);
  const auto it = calls_.find(call);
  if (it == calls_.end()) return;
  const bool slow = now - it->second > slow_;
  calls_.erase(it);
  errors_ = ok ? 0 : errors_ + 1;
  const Alarm before = raised_;
  if (errors_ >= kErrorsMax)
    raised_ = Alarm::kFailing;
  else if (slow)
    raised_ = Alarm::kSlow;
  else if (ok)
    raised_ = Alarm::kNone;
  if (before == Alarm::kNone && raised_ != Alarm::kNone) {
    ++alarms_;
    probed_at_ = now;
  }
}

DiskHealth::Alarm DiskHealth::alarm(Clock::time_point now) const {
  const MutexLock lock(mutex_);
  if (raised_ != Alarm::kNone) return raised_;
  return hangs(now) ? Alarm::kSlow : Alarm::kNone;
}

uint64_t DiskHealth::alarms() const {
  const MutexLock lock(mutex_);
  return alarms_;
}

}  // namespace kvstore
