#include "client/circuit_breaker.hpp"

#include <algorithm>

namespace kvstore {

CircuitBreaker::CircuitBreaker(int64_t backoff_ms_min, int64_t backoff_ms_max, uint64_t seed)
    : backoff_ms_min_(std::max<int64_t>(backoff_ms_min, 1)),
      backoff_ms_max_(std::max(backoff_ms_max, backoff_ms_min_)),
      random_(static_cast<std::minstd_rand::result_type>(seed)) {}

CircuitBreaker::Ticket CircuitBreaker::admit(Time now) {
  const MutexLock lock(mutex_);
  switch (state_) {
    case State::kClosed:
      return {Verdict::kAllowed, generation_};
    case State::kHalfOpen:
      return {Verdict::kRefused, 0};
    case State::kOpen:
      break;
  }
  if (now < open_until_) return {Verdict::kRefused, 0};
  state_ = State::kHalfOpen;
  return {Verdict::kProbe, ++generation_};
}

void CircuitBreaker::success(const Ticket& ticket) {
  const MutexLock lock(mutex_);
  if (ticket.generation != generation_) return;
  backoff_ms_ = 0;
  unanswered_ = {};
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  ++generation_;
}

bool CircuitBreaker::failure(const Ticket& ticket, Time now) {
  const MutexLock lock(mutex_);
  if (ticket.generation != generation_) return false;
  open(now);
  return true;
}

bool CircuitBreaker::timeout(const Ticket& ticket, Time began, Time now) {
  const MutexLock lock(mutex_);
  if (ticket.generation != generation_) return false;
  unanswered_ += std::max(now - std::max(began, counted_until_), Time::duration::zero());
  counted_until_ = std::max(counted_until_, now);
  if (unanswered_ < kPatience) {
    probe_again(ticket, now);
    return false;
  }
  open(now);
  return true;
}

void CircuitBreaker::cancel(const Ticket& ticket, Time now) {
  const MutexLock lock(mutex_);
  if (ticket.generation == generation_) probe_again(ticket, now);
}

void CircuitBreaker::probe_again(const Ticket& ticket, Time now) {
  if (ticket.verdict != Verdict::kProbe) return;
  state_ = State::kOpen;  // the next call probes in its place
  open_until_ = now;
  ++generation_;
}

void CircuitBreaker::open(Time now) {
  state_ = State::kOpen;
  ++generation_;
  unanswered_ = {};
  backoff_ms_ = backoff_ms_ == 0 ? backoff_ms_min_ : std::min(backoff_ms_ * 2, backoff_ms_max_);
  // Between half and the whole of the back-off, so that the clients of a fleet don't come back in step.
  const int64_t jittered_us =
      std::uniform_int_distribution<int64_t>(backoff_ms_ * 500, backoff_ms_ * 1000)(random_);
  open_until_ = now + std::chrono::microseconds(jittered_us);
}

bool CircuitBreaker::refusing(Time now) const {
  const MutexLock lock(mutex_);
  return state_ == State::kHalfOpen || (state_ == State::kOpen && now < open_until_);
}

bool CircuitBreaker::closed() const {
  const MutexLock lock(mutex_);
  return state_ == State::kClosed;
}

int64_t CircuitBreaker::backoff_ms() const {
  const MutexLock lock(mutex_);
  return backoff_ms_;
}

}  // namespace kvstore
