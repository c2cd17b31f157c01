// Pins: promises not to evict a slot before a deadline, within a budget of bytes that several tables share, and
// of which each owner (a session of the data port) may have a share. A slot's pin is that of the owner who promised it
// for the longest time. A timing
// wheel returns the bytes of pins that ran out, so that pinning and expiring are O(1) and nothing scans all slots. Not
// thread-safe, but for the budget: the owner locks. Times are milliseconds of any monotonic clock that starts at or
// above 1.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "segment/by_slot.hpp"

namespace kvstore {

class PinBudget {
 public:
  static constexpr uint32_t kNoOwner = 0;  // has no share to keep to

  explicit PinBudget(uint64_t bytes_max, uint64_t owner_bytes_max = UINT64_MAX)
      : bytes_max_(bytes_max), owner_bytes_max_(owner_bytes_max) {}

  // False: it would be more than the budget, or than the owner's share of it.
  bool take(uint64_t size_bytes, uint32_t owner);
  void give_back(uint64_t size_bytes, uint32_t owner) noexcept;
  // False: it would be more than the share of `to`.
  bool hand_over(uint64_t size_bytes, uint32_t from, uint32_t to);
  uint64_t pinned_bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  bool charge(uint64_t size_bytes, uint32_t owner) EXCLUDES(mutex_);
  void discharge(uint64_t size_bytes, uint32_t owner) noexcept EXCLUDES(mutex_);

  const uint64_t bytes_max_;
  const uint64_t owner_bytes_max_;
  std::atomic<uint64_t> bytes_{0};
  Mutex mutex_;                                                         // behind that of any table
  std::unordered_map<uint32_t, uint64_t> bytes_of_ GUARDED_BY(mutex_);  // by owner; none at 0
};

class PinTable {
 public:
  static constexpr uint64_t kTickMs = 256;
  static constexpr uint64_t kTicks = 256;

  // The budget outlives the table.
  explicit PinTable(PinBudget& budget) : budget_(budget) {}

  // Pins `slot` until now_ms + pin_ms (never shortening a pin it has). False when the budget, or the owner's share
  // of it, does not allow it. A longer pin_ms than the wheel's span (65 s) is cut to it.
  bool pin(uint32_t slot, uint64_t size_bytes, uint64_t now_ms, uint32_t pin_ms,
           uint32_t owner = PinBudget::kNoOwner);
  bool is_pinned(uint32_t slot, uint64_t now_ms) const {
    if (pins_.empty()) return false;
    const auto pin = pins_.find(slot);
    return pin != pins_.end() && pin->second.deadline_ms > now_ms;
  }
  // The slot's object is gone, and its pin with it.
  void forget(uint32_t slot) noexcept;
  // Takes back the bytes of pins that have run out; call it before relying on the budget.
  void expire(uint64_t now_ms);

 private:
  static constexpr uint16_t kNoTick = 0xFFFF;

  struct Pin {
    uint64_t deadline_ms = 0;
    uint64_t size_bytes = 0;
    uint32_t owner = PinBudget::kNoOwner;
    uint16_t tick = kNoTick;  // the wheel entry that counts; others of this slot are leftovers
  };
  void place(uint32_t slot, Pin& pin);

  PinBudget& budget_;
  std::unordered_map<uint32_t, Pin> pins_;
  std::array<std::vector<uint32_t>, kTicks> wheel_;
  uint64_t next_tick_ = 0;  // the first tick not swept yet
};

}  // namespace kvstore
