#include "transports/same_host/client/attached_pool.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "base/aligned_mapping.hpp"
#include "base/own_mappings.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace kvstore {
namespace {

constexpr uint64_t kTmpfs = 0x01021994;
constexpr uint64_t kHugetlbfs = 0x958458f6;
constexpr uint64_t kHugePage = 2ull << 20;
constexpr uint64_t kPopulateStepBytes = 16u << 20;  // under a millisecond: how long a detach may have to wait

// Whether nobody but the segment's user and root can make the file smaller. A memfd says so by its seal. A file of tmpfs or
// hugetlbfs, which is what outlives a segment, can't be sealed: there its mode does. Any other file is no memory.
bool keeps_its_size(int fd, const struct stat& file) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) return true;
  struct statfs system{};
  return S_ISREG(file.st_mode) && (file.st_mode & 077) == 0 && ::fstatfs(fd, &system) == 0 &&
         (static_cast<uint64_t>(system.f_type) == kTmpfs ||
          static_cast<uint64_t>(system.f_type) == kHugetlbfs);
}

// What address and offset must agree in for the kernel to map the file by pages of that size.
uint64_t alignment_of(int fd) {
  struct statfs system{};
  if (::fstatfs(fd, &system) == 0 && static_cast<uint64_t>(system.f_type) == kHugetlbfs)
    return std::max(kHugePage, static_cast<uint64_t>(system.f_bsize));
  return kHugePage;
}

// Page tables of so many bytes in small pages: 8 bytes for each of 4 KiB.
uint64_t tables_of(uint64_t bytes) { return bytes / 512; }

}  // namespace

std::unique_ptr<AttachedPool> AttachedPool::attach(int fd, const data_codec::PoolGeometry& geometry,
                                                   const AttachedPoolLimits& limits) {
  struct stat file{};
  if (::fstat(fd, &file) == 0 && keeps_its_size(fd, file) && geometry.map_bytes > 0 &&
      static_cast<uint64_t>(file.st_size) >= geometry.map_bytes) {
    // All of the file: what lies on large pages can't be mapped in parts of one.
    const auto size_bytes = static_cast<uint64_t>(file.st_size);
    uint8_t* base = map_file_aligned(fd, size_bytes, PROT_READ, alignment_of(fd));
    if (base != nullptr)
      return std::unique_ptr<AttachedPool>(new AttachedPool(fd, base, size_bytes, geometry, limits));
  }
  ::close(fd);
  return nullptr;
}

AttachedPool::AttachedPool(int fd, uint8_t* base, uint64_t size_bytes,
                           const data_codec::PoolGeometry& geometry, const AttachedPoolLimits& limits)
    : fd_(fd),
      base_(base),
      size_bytes_(size_bytes),
      geometry_(geometry),
      limits_(limits),
      window_count_((size_bytes + limits.window_bytes - 1) / limits.window_bytes),
      windows_(std::make_unique<Window[]>(window_count_)) {
  ::madvise(base_, size_bytes_, MADV_DONTFORK);
  try {
    populator_ = std::thread([this] { populate(); });
  } catch (const std::system_error&) {  // no thread to be had: the copies take the faults
  }
}

AttachedPool::~AttachedPool() {
  stopping_.store(true, std::memory_order_relaxed);
  if (populator_.joinable()) populator_.join();
  ::munmap(base_, size_bytes_);
  ::close(fd_);
}

bool AttachedPool::is_whole() const {
  struct stat file{};
  return ::fstat(fd_, &file) == 0 && static_cast<uint64_t>(file.st_size) >= size_bytes_;
}

uint64_t AttachedPool::size_of(uint64_t window) const {
  return std::min(limits_.window_bytes, size_bytes_ - window * limits_.window_bytes);
}

uint64_t AttachedPool::table_bytes() {
  const MutexLock lock(mutex_);
  return table_bytes_;
}

// Window by window, each counted as it has turned out: one of huge pages is free. Ends where the next could be too much, and
// gives none back.
void AttachedPool::populate() {
  for (uint64_t window = 0; window < window_count_; ++window) {
    const uint64_t size = size_of(window);
    {
      const MutexLock lock(mutex_);
      Window& w = windows_[window];
      if (!w.counted.load()) {
        if (table_bytes_ + tables_of(size) > limits_.table_bytes_max) return;
        w.table_bytes = tables_of(size);
        table_bytes_ += w.table_bytes;
        w.counted.store(true);
      }
    }
    if (!begin_use(window)) return;
    uint8_t* const from = base_ + window * limits_.window_bytes;
    bool populated = true;
    for (uint64_t at = 0; at < size && populated && !stopping_.load(std::memory_order_relaxed);
         at += kPopulateStepBytes)
      populated = ::madvise(from + at, std::min(kPopulateStepBytes, size - at), MADV_POPULATE_READ) == 0;
    if (populated) {
      const uint64_t tables = tables_of(size - std::min(size, huge_mapped_bytes(from, size)));
      const MutexLock lock(mutex_);
      table_bytes_ -= windows_[window].table_bytes - tables;
      windows_[window].table_bytes = tables;
    }
    end_use(window, window + 1);
    if (!populated || stopping_.load(std::memory_order_relaxed)) return;  // an older kernel
  }
}

AttachedPool::Use::Use(AttachedPool& pool, uint64_t offset, uint64_t size) : pool_(pool) {
  if (offset > pool.geometry_.map_bytes || size > pool.geometry_.map_bytes - offset) return;
  first_ = end_ = offset / pool.limits_.window_bytes;
  const uint64_t last = (offset + std::max<uint64_t>(size, 1) - 1) / pool.limits_.window_bytes;
  for (; end_ <= last; ++end_)
    if (end_ >= pool.window_count_ || !pool.begin_use(end_)) return;
  data_ = pool.base_ + offset;
}

// A window with a user is not given back.
bool AttachedPool::begin_use(uint64_t window) {
  Window& w = windows_[window];
  while ((w.users.fetch_add(1, std::memory_order_acquire) & (kRemapping | kLost)) != 0) {
    const bool lost = (w.users.fetch_sub(1, std::memory_order_relaxed) & kLost) != 0;
    if (lost) return false;
    const MutexLock waiting(mutex_);  // whoever maps it anew holds this meanwhile
  }
  w.last_use.store(now_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  if (!w.counted.load(std::memory_order_relaxed)) count(window);
  return true;
}

void AttachedPool::end_use(uint64_t first, uint64_t end) {
  for (uint64_t window = first; window < end; ++window)
    windows_[window].users.fetch_sub(1, std::memory_order_release);
}

// The tables that a window may come to; before it is read, so that they are never more than counted.
void AttachedPool::count(uint64_t window) {
  const MutexLock lock(mutex_);
  Window& w = windows_[window];
  if (w.counted.load(std::memory_order_relaxed)) return;
  w.table_bytes = tables_of(size_of(window));
  w.counted.store(true, std::memory_order_relaxed);
  table_bytes_ += w.table_bytes;
  w.last_use.store(now_.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  while (table_bytes_ > limits_.table_bytes_max && give_back_coldest(window)) {
  }
}

// False when every window that has tables is being used.
bool AttachedPool::give_back_coldest(uint64_t but) {
  uint64_t coldest = window_count_;
  for (uint64_t i = 0; i < window_count_; ++i) {
    const Window& w = windows_[i];
    if (i == but || !w.counted.load(std::memory_order_relaxed) || w.table_bytes == 0 ||
        w.users.load(std::memory_order_relaxed) != 0)
      continue;
    if (coldest == window_count_ || w.last_use.load(std::memory_order_relaxed) <
                                        windows_[coldest].last_use.load(std::memory_order_relaxed))
      coldest = i;
  }
  if (coldest == window_count_) return false;
  Window& w = windows_[coldest];
  uint32_t nobody = 0;
  if (!w.users.compare_exchange_strong(nobody, kRemapping, std::memory_order_acquire))
    return true;  // look again
  const bool mapped = map_anew(coldest);
  table_bytes_ -= w.table_bytes;
  w.table_bytes = 0;
  w.counted.store(!mapped, std::memory_order_relaxed);
  // Users that came meanwhile have added themselves, and are on their way out.
  if (!mapped) w.users.fetch_or(kLost, std::memory_order_relaxed);
  w.users.fetch_and(~kRemapping, std::memory_order_release);
  return true;
}

// Takes the place of the window's map, whose tables go with it. The same range and the same rights: it melts into its neighbours.
bool AttachedPool::map_anew(uint64_t window) {
  const uint64_t offset = window * limits_.window_bytes;
  void* const mapped = ::mmap(base_ + offset, size_of(window), PROT_READ, MAP_SHARED | MAP_FIXED, fd_,
                              static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return false;
  ::madvise(mapped, size_of(window), MADV_DONTFORK);
  return true;
}

uint64_t AttachedPool::generation(uint32_t slot) {
  if (slot >= geometry_.slot_count) return 1;
  // Between what was read before and the header, whatever use() does.
  std::atomic_thread_fence(std::memory_order_acquire);
  const Use header =
      use(geometry_.table_offset + uint64_t{slot} * geometry_.slot_bytes, geometry_.slot_bytes);
  if (header.data() == nullptr) return 1;
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(header.data()), __ATOMIC_ACQUIRE);
}

}  // namespace kvstore
