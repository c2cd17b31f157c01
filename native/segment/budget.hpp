// A cap on one thing that peers can have a segment hold (bytes, buffers, connections), in all and for each session.
//
// What is over the cap is refused and counted; nobody is ever given less than a session's first amount because
// of the session's limit, so that one object may be as large as the cap in all allows. Where it is worth
// waiting, those that hold something and make no progress are asked to make room: is_contended() tells them. A part
// of it can be kept for those who have little, so that they need not wait for those who have much.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>

#include "base/mutex.hpp"

namespace kvstore {

// Thread-safe. Outlives its shares.
class Budget {
 public:
  using Clock = std::chrono::steady_clock;
  struct Usage {
    const char* name;
    uint64_t used, limit, session_limit, refused;
  };

  Budget(const char* name, uint64_t limit, uint64_t session_limit)
      : name_(name), limit_(limit), session_limit_(session_limit) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  void set_limits(uint64_t limit, uint64_t session_limit) {
    limit_.store(limit, std::memory_order_relaxed);
    session_limit_.store(session_limit, std::memory_order_relaxed);
  }
  // Of the limit, the last `bytes` are only for who has no more than `small` with what it takes. Before anybody
  // takes anything.
  void keep_for_small(uint64_t bytes, uint64_t small) {
    kept_ = bytes;
    small_ = small;
  }
  uint64_t small() const { return small_; }
  // The most that one may take at once.
  uint64_t largest() const { return limit() - kept_; }
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  uint64_t session_limit() const { return session_limit_.load(std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  Usage usage() const {
    return {name_, used(), limit(), session_limit(), refused_.load(std::memory_order_relaxed)};
  }

  // False: over the limit, or others wait that go first. Counts nothing. `has`: what the same one has already.
  bool take(uint64_t amount, uint64_t has = UINT64_MAX) noexcept;
  // Whatever the limit is: what nobody is refused, and what is counted elsewhere.
  void take_anyway(uint64_t amount) noexcept { used_.fetch_add(amount, std::memory_order_relaxed); }
  void give_back(uint64_t amount) noexcept;
  void count_refused(uint64_t times = 1) noexcept { refused_.fetch_add(times, std::memory_order_relaxed); }

  // Waits for it: until the deadline, or until `cancelled` is set (looked at a few times a second). Meanwhile the
  // budget is contended, and nobody takes as much as `rank` or more who has not waited: those who want little go
  // first, so that what is given back does not go to those who want everything.
  bool take_in_turn(uint64_t amount, uint64_t rank, Clock::time_point deadline,
                    const std::atomic<bool>& cancelled, uint64_t has = UINT64_MAX);
  // Somebody waits for what others hold.
  bool is_contended() const { return waiting() > 0; }
  uint32_t waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  const char* const name_;
  std::atomic<uint64_t> limit_, session_limit_;
  std::atomic<uint64_t> used_{0}, refused_{0};
  bool is_small(uint64_t amount, uint64_t has) const noexcept {
    return has <= small_ && amount <= small_ - has;
  }
  bool add_within(uint64_t most, uint64_t amount) noexcept;

  uint64_t kept_ = 0, small_ = 0;

  std::atomic<uint32_t> waiting_{0};
  std::atomic<uint64_t> lowest_rank_{UINT64_MAX};  // of those who wait
  Mutex mutex_;
  std::multiset<uint64_t> ranks_ GUARDED_BY(mutex_);
  CondVar room_;  // with mutex_
};

// What one session has of a budget, given back with it. One thread's.
class BudgetShare {
 public:
  explicit BudgetShare(Budget& budget) : budget_(budget) {}
  ~BudgetShare() { give_back(taken_); }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

  // False: over the limit in all, or what this session has already and `amount` are over its own.
  bool try_take(uint64_t amount) noexcept;
  // The same, and counts what it refuses.
  bool take(uint64_t amount) noexcept;
  // Waits for the limit in all, never for its own.
  bool take(uint64_t amount, Budget::Clock::time_point deadline, const std::atomic<bool>& cancelled);
  void take_anyway(uint64_t amount) noexcept;
  // At most what it has.
  void give_back(uint64_t amount) noexcept;
  void give_back_all() noexcept { give_back(taken_); }
  uint64_t taken() const { return taken_; }
  Budget& budget() const { return budget_; }

 private:
  bool fits_session(uint64_t amount) const noexcept;

  Budget& budget_;
  uint64_t taken_ = 0;
};

}  // namespace kvstore
