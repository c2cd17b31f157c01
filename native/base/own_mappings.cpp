#include "base/own_mappings.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdio>
#include <memory>

namespace kvstore {
namespace {

// The kernel's PAGEMAP_SCAN, which headers of older systems lack.
struct PageRegion {
  uint64_t start, end, categories;
};
struct PageScan {
  uint64_t size, flags, start, end, walk_end, regions, region_count, pages_max, inverted, all_of, any_of,
      returned;
};
constexpr uint64_t kPageIsHuge = 1u << 6;
constexpr unsigned long kPagemapScan = _IOWR('f', 16, PageScan);

}  // namespace

bool is_shared_mapping_of(uint64_t address, uint64_t size_bytes, int fd) noexcept {
  struct stat file{};
  if (size_bytes == 0 || ::fstat(fd, &file) != 0) return false;
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(::fopen("/proc/self/maps", "re"), &::fclose);
  if (maps == nullptr) return false;
  uint64_t known_to = address;  // so far all of it is
  char line[8192];              // a path of 4,096 bytes may be escaped
  while (known_to < address + size_bytes && ::fgets(line, sizeof(line), maps.get()) != nullptr) {
    uint64_t from = 0, to = 0, offset = 0, inode = 0;
    unsigned major_number = 0, minor_number = 0;
    char flags[5] = {};
    if (::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &from, &to, flags, &offset,
                 &major_number, &minor_number, &inode) != 7)
      return false;
    if (to <= known_to) continue;
    if (from > known_to || flags[3] != 's' || inode != file.st_ino || major_number != major(file.st_dev) ||
        minor_number != minor(file.st_dev) || known_to - from + offset != known_to - address)
      return false;
    known_to = to;
  }
  return known_to >= address + size_bytes;
}

uint64_t huge_mapped_bytes(const void* address, uint64_t size_bytes) noexcept {
  const int fd = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  uint64_t found = 0;
  const auto from = reinterpret_cast<uint64_t>(address);
  std::array<PageRegion, 64> regions{};
  PageScan scan{};
  scan.size = sizeof(scan);
  scan.end = from + size_bytes;
  scan.regions = reinterpret_cast<uint64_t>(regions.data());
  scan.region_count = regions.size();
  scan.all_of = scan.returned = kPageIsHuge;
  for (uint64_t at = from; at < scan.end; at = scan.walk_end) {
    scan.start = at;
    scan.walk_end = 0;
    const int count = ::ioctl(fd, kPagemapScan, &scan);
    for (int i = 0; i < count; ++i) found += regions[i].end - regions[i].start;
    if (count < 0 || scan.walk_end <= at) break;
  }
  ::close(fd);
  return found;
}

}  // namespace kvstore
