// Whether the disk is used: not after errors or calls that took too long, but for one call now and then that finds out
// whether it is well again. Times are the caller's; thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "base/mutex.hpp"

namespace kvstore {

class DiskHealth {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr uint32_t kErrorsMax = 3;  // in a row
  static constexpr auto kProbeEvery = std::chrono::seconds(1);

  // A call that takes longer than `slow` is a slow one.
  explicit DiskHealth(std::chrono::milliseconds slow) : slow_(slow) {}

  // Whether a call may be made now; while the disk is not well one is let through every kProbeEvery, unless an earlier
  // one has not come back.
  bool allows(Clock::time_point now);
  bool is_well(Clock::time_point now) const;

  // Around each call: the number is for the end.
  uint64_t begin(Clock::time_point now);
  void end(uint64_t call, bool ok, Clock::time_point now);

  enum class Alarm : uint8_t { kNone = 0, kFailing = 1, kSlow = 2 };
  Alarm alarm(Clock::time_point now) const;
  uint64_t alarms() const;  // how often it was raised

 private:
  bool hangs(Clock::time_point now) const REQUIRES(mutex_);

  const std::chrono::milliseconds slow_;
  mutable Mutex mutex_;
  std::map<uint64_t, Clock::time_point> calls_ GUARDED_BY(mutex_);  // under way; few, one a thread
  uint64_t next_call_ GUARDED_BY(mutex_) = 1;
  uint32_t errors_ GUARDED_BY(mutex_) = 0;  // in a row
  Alarm raised_ GUARDED_BY(mutex_) = Alarm::kNone;
  uint64_t alarms_ GUARDED_BY(mutex_) = 0;
  Clock::time_point probed_at_ GUARDED_BY(mutex_) = Clock::time_point::min();
};

}  // namespace kvstore
