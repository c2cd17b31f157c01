#include "segment/extent_allocator.hpp"

#include <iterator>
#include <stdexcept>
#include <string>

namespace kvstore {

ExtentAllocator::ExtentAllocator(uint64_t capacity_bytes)
    : capacity_bytes_(capacity_bytes / kUnitBytes * kUnitBytes) {
  if (capacity_bytes_ > 0) insert(0, capacity_bytes_);
}

void ExtentAllocator::insert(uint64_t offset, uint64_t size) {
  by_offset_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void ExtentAllocator::take_from(ByOffset::iterator extent, uint64_t offset, uint64_t size) {
  const auto [extent_offset, extent_size] = *extent;
  by_size_.erase({extent_size, extent_offset});
  by_offset_.erase(extent);
  if (offset > extent_offset) insert(extent_offset, offset - extent_offset);
  if (extent_offset + extent_size > offset + size)
    insert(offset + size, extent_offset + extent_size - offset - size);
  used_bytes_ += size;
}

std::optional<uint64_t> ExtentAllocator::allocate(uint64_t size_bytes) {
  if (size_bytes > capacity_bytes_) return std::nullopt;
  const uint64_t size = rounded(size_bytes);
  const auto fit = by_size_.lower_bound({size, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const uint64_t offset = fit->second;
  take_from(by_offset_.find(offset), offset, size);
  return offset;
}

std::optional<uint64_t> ExtentAllocator::allocate_low(uint64_t size_bytes, uint64_t alignment, uint64_t end,
                                                      int tries) {
  if (size_bytes > capacity_bytes_) return std::nullopt;
  const uint64_t size = rounded(size_bytes);
  uint64_t lowest = UINT64_MAX, holder = 0;
  for (auto fit = by_size_.lower_bound({size, 0}); fit != by_size_.end() && tries > 0; ++fit, --tries) {
    const auto [extent_size, extent_offset] = *fit;
    const uint64_t at = (extent_offset + alignment - 1) / alignment * alignment;
    if (at + size > extent_offset + extent_size || at + size > end || at >= lowest) continue;
    lowest = at;
    holder = extent_offset;
  }
  if (lowest == UINT64_MAX) return std::nullopt;
  take_from(by_offset_.find(holder), lowest, size);
  return lowest;
}

bool ExtentAllocator::take(uint64_t offset, uint64_t size_bytes) {
  const uint64_t size = rounded(size_bytes);
  if (offset % kUnitBytes != 0 || offset > capacity_bytes_ || size > capacity_bytes_ - offset) return false;
  auto extent = by_offset_.upper_bound(offset);
  if (extent == by_offset_.begin()) return false;
  --extent;
  if (extent->first + extent->second < offset + size) return false;
  take_from(extent, offset, size);
  return true;
}

void ExtentAllocator::free(uint64_t offset, uint64_t size_bytes) {
  uint64_t size = rounded(size_bytes);
  const auto refuse = [&](const char* why) {
    throw std::logic_error("free of extent [" + std::to_string(offset) + ", +" + std::to_string(size) +
                           "): " + why);
  };
  if (offset % kUnitBytes != 0) refuse("not aligned");
  if (offset > capacity_bytes_ || size > capacity_bytes_ - offset) refuse("outside the pool");
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.end() && next->first < offset + size) refuse("overlaps a free extent");
  const auto previous = next == by_offset_.begin() ? by_offset_.end() : std::prev(next);
  if (previous != by_offset_.end() && previous->first + previous->second > offset)
    refuse("overlaps a free extent");

  used_bytes_ -= size;
  if (next != by_offset_.end() && next->first == offset + size) {
    size += next->second;
    by_size_.erase({next->second, next->first});
    by_offset_.erase(next);
  }
  if (previous != by_offset_.end() && previous->first + previous->second == offset) {
    offset = previous->first;
    size += previous->second;
    by_size_.erase({previous->second, previous->first});
    by_offset_.erase(previous);
  }
  insert(offset, size);
}

std::optional<std::pair<uint64_t, uint64_t>> ExtentAllocator::free_extent_behind(uint64_t offset) const {
  auto extent = by_offset_.upper_bound(offset);
  if (extent != by_offset_.begin()) {
    const auto before = std::prev(extent);
    if (before->first + before->second > offset) return *before;
  }
  if (extent == by_offset_.end()) return std::nullopt;
  return *extent;
}

}  // namespace kvstore
