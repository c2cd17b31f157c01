// How often pages were seen lately, as far as a few bytes a page tell: a count-min sketch that forgets. What collides
// counts as seen more often than it was. Thread-safe; counts that race may be lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "protocol/keys.hpp"

namespace kvstore {

class DiskAdmission {
 public:
  static constexpr uint32_t kCountMax = 15;

  // For as many pages as are to be told apart.
  explicit DiskAdmission(uint64_t pages);
  // The page is seen once more; how often that is now, kCountMax at most.
  uint32_t note(const Fingerprint& fp);

 private:
  std::atomic<uint8_t>& row(uint32_t row, const Fingerprint& fp) {
    const uint64_t hash = (row < 2 ? fp.lo : fp.hi) >> (row % 2 == 0 ? 0 : 32);
    return counts_[row * width_ + (hash & (width_ - 1))];
  }
  static constexpr uint32_t kRows = 4;
  const uint64_t width_;  // a power of two
  std::vector<std::atomic<uint8_t>> counts_;
  std::atomic<uint64_t> notes_{0};
};

}  // namespace kvstore
