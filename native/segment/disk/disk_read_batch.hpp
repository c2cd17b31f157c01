// Reads of one request: whoever asked waits until all are done or his time is over; what comes later goes nowhere.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "segment/disk/disk_tier.hpp"

namespace kvstore {

class DiskReadBatch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit DiskReadBatch(size_t count) : pages_(count), left_(count) {}

  // Once an entry.
  void done(uint32_t entry, DiskPage page) EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (over_) return;
      pages_[entry] = std::move(page);
      if (--left_ > 0) return;
    }
    changed_.notify_all();
  }
  // Nobody waits any more.
  bool is_over() {
    const MutexLock lock(mutex_);
    return over_;
  }
  std::vector<DiskPage> wait(Clock::time_point deadline, std::chrono::milliseconds poll,
                             const std::atomic<bool>& cancelled) {
    const MutexLock lock(mutex_);
    while (left_ > 0 && !cancelled.load()) {
      const auto now = Clock::now();
      if (now >= deadline) break;
      changed_.wait_until(mutex_, std::min(deadline, now + poll));
    }
    over_ = true;
    return std::move(pages_);
  }
  // How many had not been done by then.
  size_t given_up() {
    const MutexLock lock(mutex_);
    return left_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<DiskPage> pages_ GUARDED_BY(mutex_);
  size_t left_ GUARDED_BY(mutex_);
  bool over_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvstore
