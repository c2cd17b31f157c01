#include "segment/budget.hpp"

#include <algorithm>

namespace kvstore {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(50);  // of a waiter, at its `cancelled`

}  // namespace

bool Budget::add_within(uint64_t most, uint64_t amount) noexcept {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (used > most || amount > most - used) return false;
  } while (!used_.compare_exchange_weak(used, used + amount));
  return true;
}

bool Budget::take(uint64_t amount, uint64_t has) noexcept {
  if (is_small(amount, has)) return add_within(limit(), amount);
  return amount < lowest_rank_.load(std::memory_order_relaxed) && add_within(largest(), amount);
}

void Budget::give_back(uint64_t amount) noexcept {
  if (amount == 0) return;
  // Sequentially consistent with the waiter's count, which is raised before it looks: one of the two sees the other.
  used_.fetch_sub(amount);
  if (waiting_.load() == 0) return;
  {
    const MutexLock lock(mutex_);
  }  // a waiter between its look and its sleep must not miss this
  room_.notify_all();
}

bool Budget::take_in_turn(uint64_t amount, uint64_t rank, Clock::time_point deadline,
                          const std::atomic<bool>& cancelled, uint64_t has) {
  const uint64_t most = is_small(amount, has) ? limit() : largest();
  bool taken = false;
  {
    const MutexLock lock(mutex_);
    const auto own = ranks_.insert(rank);
    lowest_rank_.store(*ranks_.begin(), std::memory_order_relaxed);
    waiting_.fetch_add(1);  // whoever sees it counted finds its rank
    while (!taken && !cancelled.load() && Clock::now() < deadline && amount <= most) {
      taken = rank <= *ranks_.begin() && add_within(most, amount);
      if (!taken) room_.wait_until(mutex_, std::min(deadline, Clock::now() + kLookAgain));
    }
    ranks_.erase(own);
    lowest_rank_.store(ranks_.empty() ? UINT64_MAX : *ranks_.begin(), std::memory_order_relaxed);
  }
  waiting_.fetch_sub(1);
  room_.notify_all();  // whose turn it is now
  return taken;
}

bool BudgetShare::fits_session(uint64_t amount) const noexcept {
  const uint64_t most = budget_.session_limit();
  return taken_ == 0 || (taken_ <= most && amount <= most - taken_);
}

bool BudgetShare::try_take(uint64_t amount) noexcept {
  if (!fits_session(amount) || !budget_.take(amount, taken_)) return false;
  taken_ += amount;
  return true;
}

bool BudgetShare::take(uint64_t amount) noexcept {
  if (try_take(amount)) return true;
  budget_.count_refused();
  return false;
}

bool BudgetShare::take(uint64_t amount, Budget::Clock::time_point deadline,
                       const std::atomic<bool>& cancelled) {
  if (try_take(amount)) return true;
  if (fits_session(amount) && budget_.take_in_turn(amount, amount, deadline, cancelled, taken_)) {
    taken_ += amount;
    return true;
  }
  budget_.count_refused();
  return false;
}

void BudgetShare::take_anyway(uint64_t amount) noexcept {
  budget_.take_anyway(amount);
  taken_ += amount;
}

void BudgetShare::give_back(uint64_t amount) noexcept {
  amount = std::min(amount, taken_);
  taken_ -= amount;
  budget_.give_back(amount);
}

}  // namespace kvstore
