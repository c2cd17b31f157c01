#include "segment/disk/disk_format.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/digest.hpp"

namespace kvstore {
namespace {

constexpr uint64_t kRegionBytesMax = 64ull << 20;
constexpr uint64_t kRegionBytesMin = 256ull << 10;
// Few enough to be read quickly, enough that what is evicted at once is little.
constexpr uint64_t kRegionsWanted = 64;
constexpr uint64_t kRegionsMin = 4;

}  // namespace

uint32_t disk_check(const void* header, size_t size) { return crc32c(0, header, size - sizeof(uint32_t)); }

uint64_t DiskLayout::record_bytes_max() const { return region_bytes - 2 * DiskIo::kBlockBytes; }

DiskLayout disk_layout(uint64_t capacity_bytes) {
  const uint64_t block = DiskIo::kBlockBytes;
  if (capacity_bytes < kRegionsMin * kRegionBytesMin + block)
    throw std::invalid_argument("a disk tier has at least " +
                                std::to_string(kRegionsMin * kRegionBytesMin + block) + " bytes, not " +
                                std::to_string(capacity_bytes));
  DiskLayout layout;
  layout.region_bytes =
      std::clamp(capacity_bytes / kRegionsWanted, kRegionBytesMin, kRegionBytesMax) / block * block;
  const uint64_t count = (capacity_bytes - block) / layout.region_bytes;
  if (count > UINT32_MAX) throw std::invalid_argument("the disk tier is too large");
  layout.region_count = static_cast<uint32_t>(count);
  return layout;
}

}  // namespace kvstore
