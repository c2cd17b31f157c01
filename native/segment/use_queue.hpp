// Uses that readers have made of objects, on their way into the eviction order: readers don't wait for the lock that
// guards it, and whoever has it next ranks what was used, in the order of the uses. Thread-safe. Who has pushed sees to
// it that they don't grow without bound.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "base/mutex.hpp"
#include "protocol/keys.hpp"

namespace kvstore {

class UseQueue {
 public:
  struct Use {
    uint32_t slot;
    Fingerprint fp;  // of the object: the slot may be another one's by the time the use is ranked
  };
  // Worth ranking as soon as the lock is free, and worth waiting for it.
  static constexpr size_t kSoon = 1024, kMax = 8192;

  // Returns how many there are now. Where memory is short the uses are lost.
  size_t push(const std::vector<Use>& uses) noexcept {
    const MutexLock lock(mutex_);
    try {
      uses_.insert(uses_.end(), uses.begin(), uses.end());
    } catch (const std::exception&) {
    }
    return uses_.size();
  }
  // All there are, oldest first, in place of what `uses` held.
  void take(std::vector<Use>& uses) noexcept {
    uses.clear();
    const MutexLock lock(mutex_);
    uses_.swap(uses);
  }

 private:
  Mutex mutex_;
  std::vector<Use> uses_ GUARDED_BY(mutex_);
};

}  // namespace kvstore
