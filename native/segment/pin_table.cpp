#include "segment/pin_table.hpp"

#include <algorithm>

namespace kvstore {

bool PinBudget::charge(uint64_t size_bytes, uint32_t owner) {
  if (owner == kNoOwner) return true;
  const MutexLock lock(mutex_);
  uint64_t& bytes = bytes_of_[owner];
  const bool fits = bytes <= owner_bytes_max_ && size_bytes <= owner_bytes_max_ - bytes;
  if (fits) bytes += size_bytes;
  if (bytes == 0) bytes_of_.erase(owner);
  return fits;
}

void PinBudget::discharge(uint64_t size_bytes, uint32_t owner) noexcept {
  if (owner == kNoOwner) return;
  const MutexLock lock(mutex_);
  const auto found = bytes_of_.find(owner);
  if (found != bytes_of_.end() && (found->second -= size_bytes) == 0) bytes_of_.erase(found);
}

bool PinBudget::hand_over(uint64_t size_bytes, uint32_t from, uint32_t to) {
  if (!charge(size_bytes, to)) return false;
  discharge(size_bytes, from);
  return true;
}

void PinBudget::give_back(uint64_t size_bytes, uint32_t owner) noexcept {
  bytes_.fetch_sub(size_bytes, std::memory_order_relaxed);
  discharge(size_bytes, owner);
}

bool PinBudget::take(uint64_t size_bytes, uint32_t owner) {
  if (!charge(size_bytes, owner)) return false;
  uint64_t pinned = bytes_.load(std::memory_order_relaxed);
  do {
    if (size_bytes > bytes_max_ - std::min(pinned, bytes_max_)) {
      discharge(size_bytes, owner);
      return false;
    }
  } while (!bytes_.compare_exchange_weak(pinned, pinned + size_bytes, std::memory_order_relaxed));
  return true;
}

void PinTable::place(uint32_t slot, Pin& pin) {
  // The tick after the deadline, so that a sweep finds it passed.
  const auto tick = static_cast<uint16_t>((pin.deadline_ms / kTickMs + 1) % kTicks);
  wheel_[tick].push_back(slot);
  pin.tick = tick;
}

bool PinTable::pin(uint32_t slot, uint64_t size_bytes, uint64_t now_ms, uint32_t pin_ms, uint32_t owner) {
  expire(now_ms);
  const uint64_t deadline_ms = now_ms + std::min<uint64_t>(pin_ms, (kTicks - 2) * kTickMs);
  const auto known = pins_.find(slot);
  if (known != pins_.end()) {  // counted already: the wheel moves it on when it gets there
    Pin& pin = known->second;
    if (deadline_ms <= pin.deadline_ms) return true;
    if (pin.owner != owner) {  // or anyone could make use of another's share, for as long as it likes
      if (!budget_.hand_over(pin.size_bytes, pin.owner, owner)) return false;
      pin.owner = owner;
    }
    pin.deadline_ms = deadline_ms;
    return true;
  }
  Pin pin{deadline_ms, size_bytes, owner, kNoTick};
  if (!budget_.take(size_bytes, owner)) return false;
  try {
    place(slot, pin);
    pins_.emplace(slot, pin);
  } catch (...) {
    budget_.give_back(size_bytes, owner);
    throw;
  }
  return true;
}

void PinTable::forget(uint32_t slot) noexcept {
  if (pins_.empty()) return;
  const auto pin = pins_.find(slot);
  if (pin == pins_.end()) return;
  budget_.give_back(pin->second.size_bytes, pin->second.owner);
  pins_.erase(pin);
}

void PinTable::expire(uint64_t now_ms) {
  const uint64_t now_tick = now_ms / kTickMs;
  if (now_tick < next_tick_) return;
  const uint64_t first = std::max(next_tick_, now_tick >= kTicks ? now_tick - kTicks + 1 : 0);
  next_tick_ = now_tick + 1;
  if (pins_.empty()) {
    for (uint64_t tick = first; tick <= now_tick; ++tick) wheel_[tick % kTicks].clear();
    return;
  }
  for (uint64_t tick = first; tick <= now_tick; ++tick) {
    const auto index = static_cast<uint16_t>(tick % kTicks);
    std::vector<uint32_t> due;
    due.swap(wheel_[index]);
    for (const uint32_t slot : due) {
      const auto pin = pins_.find(slot);
      if (pin == pins_.end() || pin->second.tick != index) continue;
      if (pin->second.deadline_ms > now_ms)
        place(slot, pin->second);
      else
        forget(slot);
    }
  }
}

}  // namespace kvstore
