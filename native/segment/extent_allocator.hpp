// Hands out byte ranges of the pool: mixed sizes, best fit, neighbours coalesce on free. O(log free extents)
// a call. Pure bookkeeping (it never touches the memory it hands out). Not thread-safe: its owner locks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace kvstore {

class ExtentAllocator {
 public:
  static constexpr uint64_t kUnitBytes = 64;  // a cache line: what two objects share nobody writes

  // The capacity is rounded down to whole units.
  explicit ExtentAllocator(uint64_t capacity_bytes);

  // What an object of this size occupies; at least one unit.
  static uint64_t rounded(uint64_t size_bytes) {
    return size_bytes == 0 ? kUnitBytes : (size_bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  }

  // Offset of a range of rounded(size_bytes), a multiple of kUnitBytes; nothing when no free extent is long
  // enough.
  std::optional<uint64_t> allocate(uint64_t size_bytes);
  // The same as near to the beginning as it can be had within `tries` free extents that are long enough, a
  // multiple of `alignment`, and whole below `end`.
  std::optional<uint64_t> allocate_low(uint64_t size_bytes, uint64_t alignment, uint64_t end, int tries = 64);
  // Takes exactly this range, as if allocate(size_bytes) had returned its offset. False, and nothing is changed,
  // when it is not free as a whole.
  [[nodiscard]] bool take(uint64_t offset, uint64_t size_bytes);
  // Gives back exactly what allocate(size_bytes) returned, or a part of it of whole units. Throws std::logic_error
  // when the range is not in use as a whole.
  void free(uint64_t offset, uint64_t size_bytes);

  // The first free extent that ends behind `offset`: its offset and size.
  std::optional<std::pair<uint64_t, uint64_t>> free_extent_behind(uint64_t offset) const;

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t largest_free_bytes() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  size_t free_extent_count() const { return by_offset_.size(); }

 private:
  using ByOffset = std::map<uint64_t, uint64_t>;
  void insert(uint64_t offset, uint64_t size);
  void take_from(ByOffset::iterator extent, uint64_t offset, uint64_t size);

  uint64_t capacity_bytes_;
  uint64_t used_bytes_ = 0;
  ByOffset by_offset_;                               // free extents: offset -> size
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // the same ones: (size, offset)
};

}  // namespace kvstore
