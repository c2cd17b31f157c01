#include "base/aligned_mapping.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace kvstore {

uint8_t* map_file_aligned(int fd, uint64_t size_bytes, int protection, uint64_t alignment) noexcept {
  // Addresses alone, with room to choose; the file then takes the place of some of them.
  const uint64_t reserved_bytes = size_bytes + alignment;
  if (size_bytes == 0 || reserved_bytes < size_bytes) {
    errno = EINVAL;
    return nullptr;
  }
  void* reserved =
      ::mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const first = static_cast<uint8_t*>(reserved);
  const auto address = reinterpret_cast<uint64_t>(first);
  uint8_t* const wanted = first + ((address + alignment - 1) / alignment * alignment - address);
  void* mapped = ::mmap(wanted, size_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(reserved, reserved_bytes);
    errno = error;
    return nullptr;
  }
  // What is mapped ends with its last page, which may be cut.
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  uint8_t* const end = wanted + (size_bytes + page - 1) / page * page;
  if (wanted > first) ::munmap(first, static_cast<uint64_t>(wanted - first));
  if (end < first + reserved_bytes) ::munmap(end, static_cast<uint64_t>(first + reserved_bytes - end));
  return wanted;
}

}  // namespace kvstore
