// The monotonic point in time at which a call must be back. A value; thread-safe by being copied.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace kvstore {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A day is longer than any call; the cap keeps the arithmetic below far from overflow.
  static constexpr int64_t kMsMax = 24 * 3600 * 1000;

  static Deadline after_ms(int64_t ms) {
    return Deadline(Clock::now() + std::chrono::milliseconds(std::clamp<int64_t>(ms, 0, kMsMax)), 0);
  }

  // The earlier of this deadline and `ms` from now.
  Deadline within_ms(int64_t ms) const { return Deadline(std::min(end_, after_ms(ms).end_), stall_ms_); }

  // The same end, but a wait without any progress gives up after `ms`: what a probe of a doubtful peer runs under.
  Deadline with_stall_ms(int ms) const { return Deadline(end_, ms); }

  Clock::time_point end() const { return end_; }
  bool expired() const { return Clock::now() >= end_; }
  // Rounded up, so that a wait of this length never ends just before the deadline; 0 when it has passed.
  int64_t left_ms() const {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end_ - Clock::now()).count();
    return left <= 0 ? 0 : (left + 999) / 1000;
  }
  // What a single poll() may wait.
  int poll_ms() const {
    const int64_t left = left_ms();
    return static_cast<int>(stall_ms_ > 0 ? std::min<int64_t>(left, stall_ms_) : left);
  }

 private:
  Deadline(Clock::time_point end, int stall_ms) : end_(end), stall_ms_(stall_ms) {}
  Clock::time_point end_;
  int stall_ms_;  // 0: none
};

}  // namespace kvstore
