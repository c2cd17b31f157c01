// The monotonic point in time at which a call must be back, unless it is cancelled before. A value; thread-safe by being copied,
// and none of its copies outlives the call.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/cancellation.hpp"

namespace kvstore {

// When a call last moved something, on whichever thread and to whichever peer. Its deadlines end it once it has moved nothing for
// a while, however much time is left: a call that carries much may take long, and one to a peer that hangs should not.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Progress(int64_t stall_ms) : stall_(std::chrono::milliseconds(stall_ms)) { moved(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void moved() noexcept {
    moved_at_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }
  // When the call ends unless something moves before.
  Clock::time_point ends_at() const noexcept { return moved_at() + stall_; }
  // Whether it moves still, or has just been cut off.
  bool moves() const noexcept { return Clock::now() - moved_at() < stall_ / 4; }

 private:
  Clock::time_point moved_at() const noexcept {
    return Clock::time_point(Clock::duration(moved_at_.load(std::memory_order_relaxed)));
  }

  const Clock::duration stall_;
  std::atomic<Clock::rep> moved_at_{0};
};

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A day is longer than any call; the cap keeps the arithmetic below far from overflow.
  static constexpr int64_t kMsMax = 24 * 3600 * 1000;

  static Deadline after_ms(int64_t ms) {
    Deadline deadline;
    deadline.end_ = Clock::now() + std::chrono::milliseconds(std::clamp<int64_t>(ms, 0, kMsMax));
    return deadline;
  }

  // The same for a call that can be cancelled.
  Deadline of(const Cancellation& call) const {
    Deadline deadline = *this;
    deadline.call_ = &call;
    return deadline;
  }

  // The same end, or as soon as the call has stalled.
  Deadline while_moving(Progress& progress) const {
    Deadline deadline = *this;
    deadline.progress_ = &progress;
    return deadline;
  }

  // The earlier of this deadline and `ms` from now.
  Deadline within_ms(int64_t ms) const {
    Deadline deadline = *this;
    deadline.end_ = std::min(end_, after_ms(ms).end_);
    return deadline;
  }

  // The same end, but a wait without any progress gives up after `ms`, or what it had to if that is less: what a probe of a
  // doubtful peer runs under, and a call that can go elsewhere.
  Deadline with_stall_ms(int ms) const {
    Deadline deadline = *this;
    deadline.stall_ms_ = stall_ms_ > 0 ? std::min(stall_ms_, ms) : ms;
    return deadline;
  }

  // Whether it would give up before its end.
  bool may_stall_out() const { return stall_ms_ > 0; }

  // The earlier of the end and what a wait that begins now may go without progress.
  Deadline of_one_wait() const { return stall_ms_ > 0 ? within_ms(stall_ms_) : *this; }

  // Something of the call has moved: bytes to a peer or from it.
  void moved() const noexcept {
    if (progress_ != nullptr) progress_->moved();
  }
  // Whether the call moves still, or did until it was cut off just now.
  bool moves() const { return progress_ != nullptr && progress_->moves(); }

  bool cancelled() const { return call_ != nullptr && call_->is_cancelled(); }
  bool expired() const { return cancelled() || Clock::now() >= end(); }
  // Until it ends if nothing moves any more. Rounded up, so that a wait of this length never ends just before the deadline; 0 when
  // it has passed.
  int64_t left_ms() const { return cancelled() ? 0 : ms_until(end()); }
  // Until it ends at the latest, as far as it is known now.
  int64_t latest_left_ms() const { return cancelled() ? 0 : ms_until(end_); }

  class Wait;

 private:
  Deadline() = default;
  Clock::time_point end() const { return progress_ == nullptr ? end_ : std::min(end_, progress_->ends_at()); }
  static int64_t ms_until(Clock::time_point end) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end - Clock::now()).count();
    return left <= 0 ? 0 : (left + 999) / 1000;
  }

  Clock::time_point end_{};
  int stall_ms_ = 0;                    // 0: none
  const Cancellation* call_ = nullptr;  // null: can't be cancelled
  Progress* progress_ = nullptr;        // null: may stall as long as it likes
};

// One wait for progress: to the deadline, or as long as it may stall; in slices, so that a cancelled call finds out.
//
//   for (Deadline::Wait wait(deadline); !ready(slept until wait.slice_end(), or for wait.slice_ms()); )
//     if (wait.over()) return kTimeout;
class Deadline::Wait {
 public:
  explicit Wait(const Deadline& deadline) : deadline_(deadline.of_one_wait()) {}

  Clock::time_point slice_end() const {
    const Clock::time_point end = deadline_.end();
    return deadline_.call_ == nullptr ? end : std::min(end, Clock::now() + Cancellation::kSlice);
  }
  int slice_ms() const { return static_cast<int>(Deadline::ms_until(slice_end())); }
  // Hold no lock: it may look for a reason to end the call.
  bool over() const {
    Cancellation::look_now_and_then();
    return deadline_.expired();
  }

 private:
  const Deadline deadline_;
};

}  // namespace kvstore
