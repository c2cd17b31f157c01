#include "client/shared_buffer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "base/file_allocation.hpp"
#include "client/registered_memory.hpp"

namespace kvstore {
namespace {

[[noreturn]] void fail(int fd, int error, const std::string& what) {
  if (fd >= 0) ::close(fd);
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

SharedBuffer::SharedBuffer(size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) throw std::invalid_argument("a SharedBuffer needs at least one byte");
  const int fd = ::memfd_create("kvstore-shared-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail(fd, errno, "memfd_create");
  if (::ftruncate(fd, static_cast<off_t>(size_bytes)) != 0) fail(fd, errno, "ftruncate");
  // Take the pages now: a store that touches a page which can't be had is a SIGBUS, an allocation that fails is an error.
  if (const int error = allocate_file(fd, size_bytes); error != 0)
    fail(fd, error,
         "can't allocate " + std::to_string(size_bytes) + " bytes of shared memory (memory cgroup limit?)");
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fail(fd, errno, "F_ADD_SEALS");
  void* data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) fail(fd, errno, "mmap");
  // What a child wrote would be its parent's bytes; and a child's end must find nothing of it to take down.
  if (::madvise(data, size_bytes, MADV_DONTFORK) != 0) {
    const int error = errno;
    ::munmap(data, size_bytes);
    fail(fd, error, "madvise(MADV_DONTFORK)");
  }
  if (!RegisteredMemory::shared_buffers().add(reinterpret_cast<uint64_t>(data), size_bytes, fd)) {
    ::munmap(data, size_bytes);
    fail(fd, EMFILE, "can't duplicate the descriptor of a SharedBuffer");
  }
  fd_ = fd;
  data_ = data;
}

SharedBuffer::~SharedBuffer() {
  if (!owner_.is_here()) {  // the address may be anything's here, and the file is the parent's too
    ::close(fd_);
    return;
  }
  RegisteredMemory::shared_buffers().remove(reinterpret_cast<uint64_t>(data_));
  ::munmap(data_, size_bytes_);
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size_bytes_));
  ::close(fd_);
}

}  // namespace kvstore
