// The monotonic point in time at which a call must be back, unless it is cancelled before. A value; thread-safe by being copied,
// and none of its copies outlives the call.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/cancellation.hpp"

namespace kvstore {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A day is longer than any call; the cap keeps the arithmetic below far from overflow.
  static constexpr int64_t kMsMax = 24 * 3600 * 1000;

  static Deadline after_ms(int64_t ms) {
    return Deadline(Clock::now() + std::chrono::milliseconds(std::clamp<int64_t>(ms, 0, kMsMax)), 0, nullptr);
  }

  // The same for a call that can be cancelled.
  Deadline of(const Cancellation& call) const { return Deadline(end_, stall_ms_, &call); }

  // The earlier of this deadline and `ms` from now.
  Deadline within_ms(int64_t ms) const {
    return Deadline(std::min(end_, after_ms(ms).end_), stall_ms_, call_);
  }

  // The same end, but a wait without any progress gives up after `ms`: what a probe of a doubtful peer runs under.
  Deadline with_stall_ms(int ms) const { return Deadline(end_, ms, call_); }

  // The earlier of the end and what a wait that begins now may go without progress.
  Deadline of_one_wait() const {
    return stall_ms_ > 0 ? Deadline(std::min(end_, after_ms(stall_ms_).end_), stall_ms_, call_) : *this;
  }

  bool cancelled() const { return call_ != nullptr && call_->is_cancelled(); }
  bool expired() const { return cancelled() || Clock::now() >= end_; }
  // Rounded up, so that a wait of this length never ends just before the deadline; 0 when it has passed.
  int64_t left_ms() const {
    if (cancelled()) return 0;
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end_ - Clock::now()).count();
    return left <= 0 ? 0 : (left + 999) / 1000;
  }

  // One wait for progress: to the deadline, or as long as it may stall; in slices, so that a cancelled call finds out.
  //
  //   for (Deadline::Wait wait(deadline); !ready(slept until wait.slice_end(), or for wait.slice_ms()); )
  //     if (wait.over()) return kTimeout;
  class Wait {
   public:
    explicit Wait(const Deadline& deadline) : deadline_(deadline), end_(deadline.of_one_wait().end_) {}

    Clock::time_point slice_end() const {
      return deadline_.call_ == nullptr ? end_ : std::min(end_, Clock::now() + Cancellation::kSlice);
    }
    int slice_ms() const { return static_cast<int>(Deadline(slice_end(), 0, nullptr).left_ms()); }
    // Hold no lock: it may look for a reason to end the call.
    bool over() const {
      Cancellation::look_now_and_then();
      return deadline_.cancelled() || Clock::now() >= end_;
    }

   private:
    const Deadline& deadline_;
    const Clock::time_point end_;
  };

 private:
  Deadline(Clock::time_point end, int stall_ms, const Cancellation* call)
      : end_(end), stall_ms_(stall_ms), call_(call) {}
  Clock::time_point end_;
  int stall_ms_;              // 0: none
  const Cancellation* call_;  // null: can't be cancelled
};

}  // namespace kvstore
