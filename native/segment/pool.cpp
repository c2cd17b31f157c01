#include "segment/pool.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/file_allocation.hpp"
#include "base/memory_limits.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvstore {
namespace {

constexpr uint64_t kHugePage = 2ull << 20;
constexpr uint64_t kTouchChunk = 64ull << 20;
constexpr unsigned kTouchThreadsMax = 8;

uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void fail(const char* what, int error = errno) {
  throw std::system_error(error, std::generic_category(), std::string("memory pool: ") + what);
}

// Maps the pages of the range in, writable. Kernels before 5.14 lack the advice: there each page is written
// to.
int touch(uint8_t* from, uint64_t bytes) {
  do {
    if (::madvise(from, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  } while (errno == EINTR);
  if (errno != EINVAL) return errno;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  for (uint64_t at = 0; at < bytes; at += page) *static_cast<volatile uint8_t*>(from + at) = 0;
  return 0;
}

}  // namespace

PoolLayout pool_layout(uint64_t capacity_bytes, uint32_t slot_count, uint32_t slot_bytes) {
  PoolLayout layout{};
  layout.table_bytes = uint64_t{slot_count} * slot_bytes;
  layout.data_offset = round_up(layout.table_bytes, kHugePage);
  layout.map_bytes = round_up(layout.data_offset + capacity_bytes, 4096);
  return layout;
}

Pool::Pool(const PoolLayout& layout, bool lock_memory, PoolProgress* progress)
    : map_bytes_(layout.map_bytes) {
  const std::string limit = memory_limit_in_the_way(map_bytes_, lock_memory);
  if (!limit.empty())
    throw PoolLimitError("a memory pool of " + std::to_string(map_bytes_) + " bytes can't be had: " + limit);
  try {
    fd_ = ::memfd_create("kvstore-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd_ < 0) fail("memfd_create");
    if (::ftruncate(fd_, static_cast<off_t>(map_bytes_)) != 0) fail("ftruncate");
    void* mapped = ::mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (mapped == MAP_FAILED) fail("mmap");
    base_ = static_cast<uint8_t*>(mapped);
    ::madvise(base_, map_bytes_, MADV_HUGEPAGE);  // a hint: shmem_enabled may forbid huge pages
    ::madvise(base_, map_bytes_, MADV_DONTFORK);  // a fork must not share, nor be charged for, the pool
    PoolProgress unwatched;
    PoolProgress& watched = progress == nullptr ? unwatched : *progress;
    allocate_and_touch(watched);
    if (lock_memory) lock(watched);
    // FUTURE_WRITE spares the map made above and refuses every later writable one, write() included.
    if (::fcntl(fd_, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
      fail("sealing");
    read_only_fd_ = ::open(("/proc/self/fd/" + std::to_string(fd_)).c_str(), O_RDONLY | O_CLOEXEC);
    if (read_only_fd_ < 0) fail("reopening it read-only (is /proc mounted?)");
  } catch (...) {
    release();
    throw;
  }
}

Pool::~Pool() { release(); }

void Pool::release() {
  if (base_ != nullptr) ::munmap(base_, map_bytes_);
  if (read_only_fd_ >= 0) ::close(read_only_fd_);
  if (fd_ >= 0) ::close(fd_);
}

void Pool::lock(const PoolProgress& progress) {
  // In steps, so that it can be called off.
  for (uint64_t at = 0; at < map_bytes_; at += kTouchChunk) {
    if (progress.cancelled.load()) fail("locking", ECANCELED);
    if (::mlock(base_ + at, std::min(kTouchChunk, map_bytes_ - at)) == 0) continue;
    const std::string reason = std::strerror(errno);
    throw PoolLimitError(
        "locking " + std::to_string(map_bytes_) + " bytes failed (" + reason +
        "): raise RLIMIT_MEMLOCK (ulimit -l unlimited), grant CAP_IPC_LOCK, or don't lock the memory");
  }
}

void Pool::allocate_and_touch(PoolProgress& progress) {
  const uint64_t chunks = (map_bytes_ + kTouchChunk - 1) / kTouchChunk;
  const auto thread_count = static_cast<unsigned>(
      std::min<uint64_t>(chunks, std::clamp(std::thread::hardware_concurrency(), 1u, kTouchThreadsMax)));
  std::atomic<uint64_t> next{0};
  std::atomic<int> error{0};
  const auto work = [&] {
    for (uint64_t chunk = next.fetch_add(1); chunk < chunks && error.load() == 0; chunk = next.fetch_add(1)) {
      const uint64_t from = chunk * kTouchChunk;
      const uint64_t bytes = std::min(kTouchChunk, map_bytes_ - from);
      const int failed = progress.cancelled.load() ? ECANCELED : touch(base_ + from, bytes);
      if (failed != 0)
        error.store(failed);
      else
        progress.touched_bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < thread_count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  // Touching through the map (and not fallocate alone) is what gets huge pages; fallocate then proves that no
  // hole is left.
  int failed = error.load();
  if (failed == 0) failed = allocate_file(fd_, map_bytes_, &progress.cancelled);
  if (failed == ENOMEM || failed == EFAULT || failed == ENOSPC || failed == EHWPOISON)
    throw PoolLimitError(
        "a memory pool of " + std::to_string(map_bytes_) +
        " bytes can't be allocated: the machine or its memory cgroup ran out; lower capacity_bytes");
  if (failed != 0) fail("allocating", failed);
}

}  // namespace kvstore
