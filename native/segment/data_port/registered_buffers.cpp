#include "segment/data_port/registered_buffers.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/digest.hpp"
#include "protocol/wire.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC 0x958458f6
#endif

namespace kvstore {
namespace {

constexpr uint64_t kPreadChunk = 256u << 10;  // hashed while it is still in the cache

[[noreturn]] void refuse(const std::string& what) { throw wire::WireError(wire::Status::kBadRequest, what); }

uint64_t file_bytes(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) refuse(std::string("registered descriptor: ") + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse("the registered descriptor is no regular file or memfd");
  return static_cast<uint64_t>(status.st_size);
}

// Zero: some of its first `bytes` are holes. A hole of huge pages is SIGBUS when there are none left, so they count
// as having some.
uint64_t blocks_without_holes(int fd, uint64_t bytes) {
  struct statfs filesystem{};
  struct stat status{};
  if (::fstatfs(fd, &filesystem) != 0 || filesystem.f_type == HUGETLBFS_MAGIC) return 0;
  const off_t hole = ::lseek(fd, 0, SEEK_HOLE);
  if (hole < 0 || static_cast<uint64_t>(hole) < bytes || ::fstat(fd, &status) != 0) return 0;
  return static_cast<uint64_t>(status.st_blocks);
}

struct FdGuard {
  int fd;
  ~FdGuard() {
    if (fd >= 0) ::close(fd);
  }
  int take() {
    const int mine = fd;
    fd = -1;
    return mine;
  }
};

}  // namespace

RegisteredBuffers::~RegisteredBuffers() {
  for (const auto& item : buffers_) release(item.second);
}

void RegisteredBuffers::release(const Buffer& buffer) noexcept {
  if (buffer.map != nullptr) {
    ::munmap(const_cast<uint8_t*>(buffer.map), buffer.bytes);
    mapped_bytes_.give_back(buffer.bytes);
  }
  ::close(buffer.fd);
  count_.give_back(1);
}

void RegisteredBuffers::try_to_map(Buffer& buffer) {
  const int seals = ::fcntl(buffer.fd, F_GET_SEALS);  // -1: no memfd
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return;
  buffer.blocks = blocks_without_holes(buffer.fd, buffer.bytes);
  if (buffer.blocks == 0 || !mapped_bytes_.take(buffer.bytes)) return;
  void* const map = ::mmap(nullptr, buffer.bytes, PROT_READ, MAP_SHARED, buffer.fd, 0);
  if (map == MAP_FAILED) return mapped_bytes_.give_back(buffer.bytes);
  ::madvise(map, buffer.bytes, MADV_DONTFORK);
  ::madvise(map, buffer.bytes,
            MADV_POPULATE_READ);  // a hint: older kernels fault the pages in as they are read
  buffer.map = static_cast<const uint8_t*>(map);
}

std::optional<RegisteredBuffers::Registered> RegisteredBuffers::add(int fd, uint64_t bytes) {
  FdGuard guard{fd};
  if (fd < 0) refuse("REGISTER needs a descriptor on the request");
  const uint64_t size = file_bytes(fd);
  if (bytes == 0 || bytes > size)
    refuse("registered " + std::to_string(bytes) + " bytes of a file of " + std::to_string(size));
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY) refuse("the registered descriptor can't be read");

  if (!count_.take(1)) return std::nullopt;
  const uint32_t id = next_id_++;
  Buffer& buffer = buffers_.emplace(id, Buffer{fd, bytes, nullptr, 0, 0}).first->second;
  guard.take();
  try_to_map(buffer);
  return Registered{id, buffer.map != nullptr ? Mode::kMapped : Mode::kPread};
}

const RegisteredBuffers::Buffer& RegisteredBuffers::at(uint32_t id) const {
  const auto found = buffers_.find(id);
  if (found == buffers_.end())
    refuse("no buffer " + std::to_string(id) + " is registered on this connection");
  return found->second;
}

void RegisteredBuffers::remove(uint32_t id) {
  release(at(id));
  buffers_.erase(id);
}

uint64_t RegisteredBuffers::usable_bytes(uint32_t id) {
  Buffer& buffer = at(id);
  // Memory that had not been touched when it was registered is by now, mostly. Looking costs a walk over its pages, so it is
  // done less and less often.
  ++buffer.uses;
  if (buffer.map == nullptr && (buffer.uses & (buffer.uses - 1)) == 0) try_to_map(buffer);
  struct stat status{};
  if (buffer.map != nullptr &&
      (::fstat(buffer.fd, &status) != 0 || static_cast<uint64_t>(status.st_blocks) < buffer.blocks))
    refuse("pages of the registered memory are gone, so it can't be copied from any more: register it anew");
  if (buffer.map == nullptr && file_bytes(buffer.fd) < buffer.bytes)
    refuse("the registered file has shrunk below its " + std::to_string(buffer.bytes) + " bytes");
  return buffer.bytes;
}

bool RegisteredBuffers::copy(uint32_t id, uint64_t offset, uint64_t size, uint8_t* to, uint32_t& crc) const {
  const Buffer& buffer = at(id);
  if (buffer.map != nullptr) {
    crc = copy_crc32c(crc, to, buffer.map + offset, size);
    return true;
  }
  while (size > 0) {
    const ssize_t n = ::pread(buffer.fd, to, std::min(size, kPreadChunk), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    crc = crc32c(crc, to, static_cast<size_t>(n));
    to += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<uint64_t>(n);
  }
  return true;
}

}  // namespace kvstore
