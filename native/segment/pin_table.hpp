// Pins: promises not to evict a slot before a deadline, within a budget of bytes. A timing wheel returns the
// bytes of pins that ran out, so that pinning and expiring are O(1) and nothing scans all slots. Not
// thread-safe: the owner locks. Times are milliseconds of any monotonic clock that starts at or above 1.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "segment/slot_table.hpp"

namespace kvstore {

class PinTable {
 public:
  PinTable(uint32_t slot_count, uint64_t pinned_bytes_max);

  // Pins `slot` until now_ms + pin_ms (never shortening a pin it has). False when the budget does not allow
  // it. A longer pin_ms than the wheel's span (65 s) is cut to it.
  bool pin(uint32_t slot, uint64_t size_bytes, uint64_t now_ms, uint32_t pin_ms);
  bool is_pinned(uint32_t slot, uint64_t now_ms) const { return pins_[slot].deadline_ms > now_ms; }
  // The slot's object is gone, and its pin with it.
  void forget(uint32_t slot);
  // Takes back the bytes of pins that have run out; call it before relying on pinned_bytes().
  void expire(uint64_t now_ms);

  uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  static constexpr uint64_t kTickMs = 64;
  static constexpr uint64_t kTicks = 1024;
  static constexpr uint16_t kNoTick = 0xFFFF;

  struct Pin {
    uint64_t deadline_ms = 0;
    uint64_t size_bytes = 0;
    uint16_t tick = kNoTick;  // the wheel entry that counts; others of this slot are leftovers
  };
  void place(uint32_t slot);

  std::vector<Pin> pins_;
  std::array<std::vector<uint32_t>, kTicks> wheel_;
  uint64_t next_tick_ = 0;  // the first tick not swept yet
  uint64_t pinned_bytes_ = 0;
  uint64_t pinned_bytes_max_;
};

}  // namespace kvstore
