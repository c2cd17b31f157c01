#include "segment/pin_table.hpp"

#include <algorithm>

namespace kvstore {

PinTable::PinTable(uint32_t slot_count, uint64_t pinned_bytes_max)
    : pins_(slot_count), pinned_bytes_max_(pinned_bytes_max) {}

void PinTable::place(uint32_t slot) {
  Pin& pin = pins_[slot];
  // The tick after the deadline, so that a sweep finds it passed.
  pin.tick = static_cast<uint16_t>((pin.deadline_ms / kTickMs + 1) % kTicks);
  wheel_[pin.tick].push_back(slot);
}

bool PinTable::pin(uint32_t slot, uint64_t size_bytes, uint64_t now_ms, uint32_t pin_ms) {
  expire(now_ms);
  const uint64_t deadline_ms = now_ms + std::min<uint64_t>(pin_ms, (kTicks - 2) * kTickMs);
  Pin& pin = pins_[slot];
  if (pin.tick != kNoTick) {  // counted already: the wheel moves it on when it gets there
    pin.deadline_ms = std::max(pin.deadline_ms, deadline_ms);
    return true;
  }
  if (size_bytes > pinned_bytes_max_ - std::min(pinned_bytes_, pinned_bytes_max_)) return false;
  pin.deadline_ms = deadline_ms;
  pin.size_bytes = size_bytes;
  pinned_bytes_ += size_bytes;
  place(slot);
  return true;
}

void PinTable::forget(uint32_t slot) {
  Pin& pin = pins_[slot];
  if (pin.tick != kNoTick) pinned_bytes_ -= pin.size_bytes;
  pin = Pin{};
}

void PinTable::expire(uint64_t now_ms) {
  const uint64_t now_tick = now_ms / kTickMs;
  if (now_tick < next_tick_) return;
  const uint64_t first = std::max(next_tick_, now_tick >= kTicks ? now_tick - kTicks + 1 : 0);
  next_tick_ = now_tick + 1;
  for (uint64_t tick = first; tick <= now_tick; ++tick) {
    const auto index = static_cast<uint16_t>(tick % kTicks);
    std::vector<uint32_t> due;
    due.swap(wheel_[index]);
    for (const uint32_t slot : due) {
      Pin& pin = pins_[slot];
      if (pin.tick != index) continue;
      if (pin.deadline_ms > now_ms)
        place(slot);
      else
        forget(slot);
    }
  }
}

}  // namespace kvstore
