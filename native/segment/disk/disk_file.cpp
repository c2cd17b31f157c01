#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "segment/disk/disk_io.hpp"

namespace kvstore {
namespace {

class DiskFile final : public DiskIo {
 public:
  DiskFile(const std::string& path, uint64_t capacity_bytes) {
    constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    fd_ = ::open(path.c_str(), kFlags | O_DIRECT, 0600);
    direct_ = fd_ >= 0;
    if (fd_ < 0 && errno == EINVAL) fd_ = ::open(path.c_str(), kFlags, 0600);
    if (fd_ < 0) fail("opening " + path);
    struct stat info;
    if (::fstat(fd_, &info) != 0) fail("looking at " + path);
    if (!S_ISREG(info.st_mode)) {
      errno = ENOTSUP;
      fail(path + " is no regular file");
    }
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) fail("locking " + path + ", which another process has");
    if (static_cast<uint64_t>(info.st_size) != capacity_bytes &&
        ::ftruncate(fd_, static_cast<off_t>(capacity_bytes)) != 0)
      fail("giving " + path + " its size");
    preallocated_ = ::fallocate(fd_, 0, 0, static_cast<off_t>(capacity_bytes)) == 0;
  }
  ~DiskFile() override { ::close(fd_); }

  int read(uint64_t offset, void* to, uint64_t size) override {
    return whole(size, [&](uint64_t done) {
      return ::pread(fd_, static_cast<uint8_t*>(to) + done, size - done, static_cast<off_t>(offset + done));
    });
  }
  int write(uint64_t offset, const void* from, uint64_t size) override {
    return whole(size, [&](uint64_t done) {
      return ::pwrite(fd_, static_cast<const uint8_t*>(from) + done, size - done,
                      static_cast<off_t>(offset + done));
    });
  }
  bool is_direct() const override { return direct_; }
  bool is_preallocated() const override { return preallocated_; }

 private:
  [[noreturn]] void fail(const std::string& what) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    throw std::system_error(error, std::generic_category(), what);
  }
  template <typename Some>
  static int whole(uint64_t size, Some&& some) {
    for (uint64_t done = 0; done < size;) {
      const ssize_t n = some(done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno;
      if (n == 0) return EIO;
      done += static_cast<uint64_t>(n);
      // What is left would not be aligned: the medium is short, and not the call.
      if (done < size && done % kBlockBytes != 0) return EIO;
    }
    return 0;
  }

  int fd_ = -1;
  bool direct_ = false, preallocated_ = false;
};

}  // namespace

std::unique_ptr<DiskIo> open_disk_file(const std::string& path, uint64_t capacity_bytes) {
  return std::make_unique<DiskFile>(path, capacity_bytes);
}

}  // namespace kvstore
