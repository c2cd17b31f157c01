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
  static constexpr uint64_t kUnitBytes = 512;

  // The capacity is rounded down to whole units.
  explicit ExtentAllocator(uint64_t capacity_bytes);

  // What an object of this size occupies; at least one unit.
  static uint64_t rounded(uint64_t size_bytes) {
    return size_bytes == 0 ? kUnitBytes : (size_bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  }

  // Offset of a range of rounded(size_bytes), a multiple of kUnitBytes; nothing when no free extent is long
  // enough.
  std::optional<uint64_t> allocate(uint64_t size_bytes);
  // Gives back exactly what allocate(size_bytes) returned. Throws std::logic_error when the range is not in
  // use as a whole.
  void free(uint64_t offset, uint64_t size_bytes);

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t largest_free_bytes() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  size_t free_extent_count() const { return by_offset_.size(); }

 private:
  void insert(uint64_t offset, uint64_t size);

  uint64_t capacity_bytes_;
  uint64_t used_bytes_ = 0;
  std::map<uint64_t, uint64_t> by_offset_;           // free extents: offset -> size
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // the same ones: (size, offset)
};

}  // namespace kvstore
