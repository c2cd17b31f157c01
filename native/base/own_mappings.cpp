#include "base/own_mappings.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cinttypes>
#include <cstdio>
#include <memory>

namespace kvstore {

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

}  // namespace kvstore
