#include "segment/disk/disk_admission.hpp"

#include <algorithm>

namespace kvstore {
namespace {

constexpr uint64_t kWidthMin = 1u << 16, kWidthMax = 1u << 28;
// So many notes a place of a row are between two halvings of its count.
constexpr uint64_t kNotesToForget = 8;

uint64_t width_of(uint64_t pages) {
  uint64_t width = kWidthMin;
  while (width < kWidthMax && width < 4 * pages) width *= 2;
  return width;
}

}  // namespace

DiskAdmission::DiskAdmission(uint64_t pages) : width_(width_of(pages)), counts_(kRows * width_) {}

uint32_t DiskAdmission::note(const Fingerprint& fp) {
  const uint64_t n = notes_.fetch_add(1, std::memory_order_relaxed);
  if (n % (kNotesToForget / kRows) == 0) {
    std::atomic<uint8_t>& old = counts_[(n / (kNotesToForget / kRows)) & (kRows * width_ - 1)];
    old.store(old.load(std::memory_order_relaxed) / 2, std::memory_order_relaxed);
  }
  uint32_t least = kCountMax;
  for (uint32_t r = 0; r < kRows; ++r) {
    std::atomic<uint8_t>& count = row(r, fp);
    const auto seen =
        static_cast<uint8_t>(std::min<uint32_t>(count.load(std::memory_order_relaxed) + 1u, kCountMax));
    count.store(seen, std::memory_order_relaxed);
    least = std::min<uint32_t>(least, seen);
  }
  return least;
}

}  // namespace kvstore
