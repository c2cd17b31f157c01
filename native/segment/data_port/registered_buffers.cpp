#include "segment/data_port/registered_buffers.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

void RegisteredBuffers::release(const Buffer& buffer) {
  if (buffer.map != nullptr) ::munmap(const_cast<uint8_t*>(buffer.map), buffer.bytes);
  ::close(buffer.fd);
}

RegisteredBuffers::Registered RegisteredBuffers::add(int fd, uint64_t bytes) {
  FdGuard guard{fd};
  if (fd < 0) refuse("REGISTER needs a descriptor on the request");
  const uint64_t size = file_bytes(fd);
  if (bytes == 0 || bytes > size)
    refuse("registered " + std::to_string(bytes) + " bytes of a file of " + std::to_string(size));
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY) refuse("the registered descriptor can't be read");

  Buffer buffer{fd, bytes, nullptr};
  const int seals = ::fcntl(fd, F_GET_SEALS);  // -1: no memfd
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) {
    void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) {
      buffer.map = static_cast<const uint8_t*>(map);
      ::madvise(map, bytes, MADV_DONTFORK);
      ::madvise(map, bytes, MADV_POPULATE_READ);  // a hint: older kernels fault the pages in as they are read
    }
  }
  const uint32_t id = next_id_++;
  buffers_.emplace(id, buffer);
  guard.take();
  return {id, buffer.map != nullptr ? Mode::kMapped : Mode::kPread};
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

uint64_t RegisteredBuffers::usable_bytes(uint32_t id) const {
  const Buffer& buffer = at(id);
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
