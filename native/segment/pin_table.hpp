// Pins: promises not to evict a slot before a deadline, within a budget of bytes that several tables share. A timing
// wheel returns the bytes of pins that ran out, so that pinning and expiring are O(1) and nothing scans all slots. Not
// thread-safe, but for the budget: the owner locks. Times are milliseconds of any monotonic clock that starts at or
// above 1.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "segment/by_slot.hpp"

namespace kvstore {

class PinBudget {
 public:
  explicit PinBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  bool take(uint64_t size_bytes) noexcept;
  void give_back(uint64_t size_bytes) noexcept { bytes_.fetch_sub(size_bytes, std::memory_order_relaxed); }
  uint64_t pinned_bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const uint64_t bytes_max_;
  std::atomic<uint64_t> bytes_{0};
};

class PinTable {
 public:
  static constexpr uint64_t kTickMs = 256;
  static constexpr uint64_t kTicks = 256;

  // The budget outlives the table.
  explicit PinTable(PinBudget& budget) : budget_(budget) {}

  // Pins `slot` until now_ms + pin_ms (never shortening a pin it has). False when the budget does not allow
  // it. A longer pin_ms than the wheel's span (65 s) is cut to it.
  bool pin(uint32_t slot, uint64_t size_bytes, uint64_t now_ms, uint32_t pin_ms);
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
    uint16_t tick = kNoTick;  // the wheel entry that counts; others of this slot are leftovers
  };
  void place(uint32_t slot, Pin& pin);

  PinBudget& budget_;
  std::unordered_map<uint32_t, Pin> pins_;
  std::array<std::vector<uint32_t>, kTicks> wheel_;
  uint64_t next_tick_ = 0;  // the first tick not swept yet
};

}  // namespace kvstore
