#include "segment/extent_allocator.hpp"

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

std::optional<uint64_t> ExtentAllocator::allocate(uint64_t size_bytes) {
  if (size_bytes > capacity_bytes_) return std::nullopt;
  const uint64_t size = rounded(size_bytes);
  const auto fit = by_size_.lower_bound({size, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const auto [extent_size, offset] = *fit;
  by_size_.erase(fit);
  by_offset_.erase(offset);
  if (extent_size > size) insert(offset + size, extent_size - size);
  used_bytes_ += size;
  return offset;
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

}  // namespace kvstore
