#include "segment/eviction/ghost_table.hpp"

#include <algorithm>

#include "protocol/keys.hpp"

namespace kvstore {

void GhostTable::make_room(uint32_t object_count) noexcept {
  const uint64_t wanted = uint64_t{object_count} * kGhostsAnObject;
  if (wanted <= ghosts_max_) return;
  while (uint64_t{bucket_count_} * kFilled < wanted) {
    const uint32_t allocated = block_count_ == 0 ? 0 : 1u << (kFirstBlockBits + block_count_ - 1);
    if (bucket_count_ == allocated) {
      const size_t added = allocated == 0 ? 1u << kFirstBlockBits : allocated;
      if (block_count_ == blocks_.size()) return;
      void* block = std::calloc(added, sizeof(Bucket));
      if (block == nullptr) return;
      blocks_[block_count_++].reset(static_cast<Bucket*>(block));
    }
    ++bucket_count_;
  }
  ghosts_max_ = static_cast<uint32_t>(std::min<uint64_t>(wanted, 0xFFFFFFFFu));
  // A tick is about a 16th of the time in which as many objects are used as there are: times are told apart over
  // the last hundred such times.
  const uint32_t bits = 31 - static_cast<uint32_t>(__builtin_clz(object_count));
  const uint32_t shift = bits > 4 ? bits - 4 : 0;
  if (shift != tick_shift_) set_tick_shift(shift);
}

void GhostTable::set_tick_shift(uint32_t shift) {
  newest_tick_ = newest_tick_ << tick_shift_ >> shift;
  tick_shift_ = shift;
  oldest_age_ = 0;
  size_ = 0;
  by_tick_.fill(0);
}

void GhostTable::advance(uint32_t now) {
  const uint32_t tick = now >> tick_shift_;
  // Nobody has come or gone for so long that all are too old: one step, however many ticks that were.
  if (((tick - newest_tick_) & (0xFFFFFFFFu >> tick_shift_)) > kTickMask) {
    by_tick_.fill(0);
    size_ = 0;
    oldest_age_ = 0;
    newest_tick_ = tick;
  }
  for (; newest_tick_ != tick; newest_tick_ = (newest_tick_ + 1) & (0xFFFFFFFFu >> tick_shift_)) {
    if (oldest_age_ < kTickMask - 1) {
      ++oldest_age_;
    } else {
      uint32_t& gone = by_tick_[(newest_tick_ - oldest_age_) & kTickMask];
      size_ -= gone;
      gone = 0;
    }
  }
  while (size_ > ghosts_max_ && oldest_age_ > 0) {
    uint32_t& gone = by_tick_[(newest_tick_ - oldest_age_) & kTickMask];
    size_ -= gone;
    gone = 0;
    --oldest_age_;
  }
}

GhostTable::Bucket& GhostTable::bucket(uint64_t hash) {
  const uint32_t half = 1u << (31 - static_cast<uint32_t>(__builtin_clz(bucket_count_)));
  uint32_t at = static_cast<uint32_t>(hash) & (2 * half - 1);
  if (at >= bucket_count_) at &= half - 1;
  if (at < 1u << kFirstBlockBits) return blocks_[0][at];
  const uint32_t top = 31 - static_cast<uint32_t>(__builtin_clz(at));
  return blocks_[top - kFirstBlockBits + 1][at - (1u << top)];
}

void GhostTable::forget(uint32_t& ghost) {
  uint32_t& alike = by_tick_[ghost >> 7 & kTickMask];
  if (alike > 0) {
    --alike;
    --size_;
  }
  ghost = 0;
}

void GhostTable::put(uint64_t id, uint8_t memory, uint32_t now) noexcept {
  if (bucket_count_ == 0) return;
  advance(now);
  const uint32_t tick = newest_tick_ & kTickMask;
  const uint64_t hash = mix64(id);
  uint32_t* place = nullptr;
  for (uint32_t& ghost : bucket(hash).ghosts) {
    if (!is_alive(ghost)) {
      place = &ghost;
      break;
    }
    if (place == nullptr || age_ticks(ghost >> 7) > age_ticks(*place >> 7)) place = &ghost;
  }
  if (is_alive(*place)) forget(*place);
  *place = tag(hash) << 18 | tick << 7 | (memory & 127u);
  ++by_tick_[tick];
  ++size_;
}

std::optional<GhostTable::Ghost> GhostTable::take(uint64_t id, uint32_t now) noexcept {
  if (size_ == 0) return std::nullopt;  // as long as a pool fills up: nothing of so large a table is read
  advance(now);
  const uint64_t hash = mix64(id);
  for (uint32_t& ghost : bucket(hash).ghosts) {
    if (ghost >> 18 != tag(hash) || !is_alive(ghost)) continue;
    const Ghost found{static_cast<uint8_t>(ghost & 127u), age_ticks(ghost >> 7) << tick_shift_};
    forget(ghost);
    return found;
  }
  return std::nullopt;
}

}  // namespace kvstore
