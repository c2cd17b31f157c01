// Keeps calls away from a peer that just failed. A state machine without IO and without a clock of its own; thread-safe.
//
//   closed    --failure-->  open (for a jittered back-off that doubles with each failure in a row)
//   open      --back-off over, next admit()-->  half-open: that one call is the probe, all others are refused
//   half-open --success of the probe-->  closed;  --failure-->  open
#pragma once

#include <chrono>
#include <cstdint>
#include <random>

#include "base/deadline.hpp"
#include "base/mutex.hpp"

namespace kvstore {

class CircuitBreaker {
 public:
  using Time = Deadline::Clock::time_point;

  static constexpr auto kPatience = std::chrono::milliseconds(50);

  enum class Verdict : uint8_t { kAllowed, kProbe, kRefused };
  // Hand it back with success(), failure(), timeout() or cancel(), exactly once, unless the verdict is kRefused.
  struct Ticket {
    Verdict verdict = Verdict::kRefused;
    uint64_t generation = 0;
  };

  CircuitBreaker(int64_t backoff_ms_min, int64_t backoff_ms_max, uint64_t seed);

  Ticket admit(Time now);
  void success(const Ticket& ticket);
  // Of calls that were admitted together, only the first failure counts. True when this one opened the breaker.
  bool failure(const Ticket& ticket, Time now);
  // The call's own deadline came before an answer. That is the peer's failure only when it had time to answer: kPatience of such
  // waiting since its last success, whichever calls it was spent in. Otherwise one caller with a deadline of a millisecond would
  // keep all others away from a good peer. True when this one opened the breaker.
  bool timeout(const Ticket& ticket, Time began, Time now);
  // The call ended without having learned anything about the peer.
  void cancel(const Ticket& ticket, Time now);

  // Whether admit() would refuse now.
  bool refusing(Time now) const;
  // Whether the last that was heard of the peer was good.
  bool closed() const;
  int64_t backoff_ms() const;  // of the current or last open phase, before jitter; 0 when closed by a success

 private:
  enum class State : uint8_t { kClosed, kOpen, kHalfOpen };
  void open(Time now) REQUIRES(mutex_);
  void probe_again(const Ticket& ticket, Time now) REQUIRES(mutex_);

  const int64_t backoff_ms_min_;
  const int64_t backoff_ms_max_;
  mutable Mutex mutex_;
  std::minstd_rand random_ GUARDED_BY(mutex_);
  State state_ GUARDED_BY(mutex_) = State::kClosed;
  // Grows with each change of state: outcomes of older tickets don't count.
  uint64_t generation_ GUARDED_BY(mutex_) = 1;
  int64_t backoff_ms_ GUARDED_BY(mutex_) = 0;
  Time open_until_ GUARDED_BY(mutex_){};
  Time::duration unanswered_ GUARDED_BY(mutex_){};  // time with nothing but calls that timed out
  Time counted_until_ GUARDED_BY(mutex_){};         // how far that time has been counted: calls overlap
};

}  // namespace kvstore
