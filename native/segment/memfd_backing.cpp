#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "segment/pool_backing.hpp"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#define MFD_HUGE_1GB (30u << 26)
#endif

namespace kvstore {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), std::string("memory pool: ") + what);
}

class MemfdBacking : public PoolBacking {
 public:
  MemfdBacking(uint64_t bytes, HugePages pages) : page_bytes_(::kvstore::reserved_page_bytes(pages)) {
    const uint64_t unit = page_bytes_ == 0 ? static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) : page_bytes_;
    file_bytes_ = (bytes + unit - 1) / unit * unit;
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    if (page_bytes_ != 0) {
      const std::string limit = huge_page_limit_in_the_way(file_bytes_, page_bytes_);
      if (!limit.empty())
        throw PoolLimitError("a memory pool of " + std::to_string(file_bytes_) +
                             " bytes can't be had: " + limit);
      flags |= MFD_HUGETLB | (pages == HugePages::k1GiB ? MFD_HUGE_1GB : MFD_HUGE_2MB);
    }
    fd_ = ::memfd_create("kvstore-pool", flags);
    if (fd_ < 0) fail("memfd_create");
    if (::ftruncate(fd_, static_cast<off_t>(file_bytes_)) != 0) {
      const int error = errno;
      ::close(fd_);
      errno = error;
      fail("ftruncate");
    }
  }
  ~MemfdBacking() override { ::close(fd_); }
  MemfdBacking(const MemfdBacking&) = delete;
  MemfdBacking& operator=(const MemfdBacking&) = delete;

  int fd() const override { return fd_; }
  uint64_t file_bytes() const override { return file_bytes_; }
  uint64_t reserved_page_bytes() const override { return page_bytes_; }
  bool adopted() const override { return false; }
  uint64_t allocated_bytes() const override { return 0; }
  void seal() override {
    // FUTURE_WRITE spares the map made before and refuses every later writable one, write() included.
    if (::fcntl(fd_, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
      fail("sealing");
  }
  void let_go() noexcept override {}
  void abandon() noexcept override {}

 private:
  const uint64_t page_bytes_;
  uint64_t file_bytes_ = 0;
  int fd_ = -1;
};

}  // namespace

std::unique_ptr<PoolBacking> make_memfd_backing(uint64_t bytes, HugePages pages) {
  return std::make_unique<MemfdBacking>(bytes, pages);
}

}  // namespace kvstore
