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

#include "base/aligned_mapping.hpp"
#include "base/file_allocation.hpp"
#include "base/memory_limits.hpp"
#include "base/numa_nodes.hpp"
#include "segment/page_toucher.hpp"

namespace kvstore {
namespace {

constexpr uint64_t kHugePage = 2ull << 20;
constexpr uint64_t kStepBytes = 64ull << 20;
constexpr unsigned kTouchThreadsMax = 8;

uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void fail(const char* what, int error = errno) {
  throw std::system_error(error, std::generic_category(), std::string("memory pool: ") + what);
}

[[noreturn]] void limited(uint64_t bytes, const std::string& limit) {
  throw PoolLimitError("a memory pool of " + std::to_string(bytes) + " bytes can't be had: " + limit);
}

std::unique_ptr<PoolBacking> make_backing(uint64_t bytes, const PoolOptions& options) {
  // The limits of this process come first: a file over RLIMIT_FSIZE ends it by a signal.
  MemoryNeed need;
  need.map_bytes = round_up(bytes, std::max(kHugePage, reserved_page_bytes(options.huge_pages)));
  need.locked = options.lock_memory;
  const std::string limit = memory_limit_in_the_way(need);
  if (!limit.empty()) limited(bytes, limit);
  if (options.path.empty()) return make_memfd_backing(bytes, options.huge_pages);
  return make_file_backing(options.path, bytes, options.huge_pages, options.examine);
}

}  // namespace

PoolLayout pool_layout(uint64_t capacity_bytes, uint32_t slot_count, uint32_t slot_bytes) {
  PoolLayout layout{};
  layout.table_bytes = uint64_t{slot_count} * slot_bytes;
  layout.data_offset = round_up(layout.table_bytes, kHugePage);
  layout.map_bytes = round_up(layout.data_offset + capacity_bytes, 4096);
  return layout;
}

Pool::Pool(const PoolLayout& layout, const PoolOptions& options, PoolProgress* progress)
    : map_bytes_(layout.map_bytes), backing_(make_backing(layout.map_bytes, options)) {
  PoolProgress unwatched;
  try {
    make(options, progress == nullptr ? unwatched : *progress);
  } catch (...) {
    release();
    backing_->abandon();
    throw;
  }
}

Pool::~Pool() { release(); }

void Pool::make(const PoolOptions& options, PoolProgress& progress) {
  progress.total_bytes.store(map_bytes_);
  check_limits(options);
  base_ = map_file_aligned(backing_->fd(), backing_->file_bytes(), PROT_READ | PROT_WRITE,
                           std::max(kHugePage, backing_->reserved_page_bytes()));
  if (base_ == nullptr) fail("mmap");
  fault_note_.emplace(base_, backing_->file_bytes(), options.path);
  const bool transparent =
      options.huge_pages == HugePages::kTransparent && backing_->reserved_page_bytes() == 0;
  ::madvise(base_, map_bytes_, transparent ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  ::madvise(base_, map_bytes_, MADV_DONTFORK);  // a fork must not share, nor be charged for, the pool
  bind(options);
  allocate_and_touch(transparent, progress);
  if (options.lock_memory) lock(progress);
  backing_->seal();
  read_only_fd_ = ::open(("/proc/self/fd/" + std::to_string(backing_->fd())).c_str(), O_RDONLY | O_CLOEXEC);
  if (read_only_fd_ < 0) fail("reopening it read-only (is /proc mounted?)");
}

void Pool::release() {
  fault_note_.reset();
  if (base_ != nullptr) ::munmap(base_, backing_->file_bytes());
  if (read_only_fd_ >= 0) ::close(read_only_fd_);
}

void Pool::check_limits(const PoolOptions& options) const {
  MemoryNeed need;
  need.map_bytes = backing_->file_bytes();
  need.new_bytes = need.map_bytes - std::min(need.map_bytes, backing_->allocated_bytes());
  need.locked = options.lock_memory;
  need.from_reserved_pages = backing_->reserved_page_bytes() != 0;
  std::string limit = memory_limit_in_the_way(need);
  if (limit.empty())
    limit = numa_limit_in_the_way(options.numa_nodes, need.from_reserved_pages ? 0 : need.new_bytes);
  if (!limit.empty()) limited(map_bytes_, limit);
}

void Pool::bind(const PoolOptions& options) const {
  if (options.numa_nodes.empty()) return;
  const int failed = bind_to_numa_nodes(base_, backing_->file_bytes(), options.numa_nodes);
  if (failed == 0) return;
  throw PoolLimitError(std::string("the memory pool can't be bound to numa_nodes (") + std::strerror(failed) +
                       "): a container needs CAP_SYS_NICE for it, and the nodes must be of its cpuset "
                       "(Mems_allowed_list in /proc/self/status); "
                       "or leave numa_nodes empty");
}

void Pool::lock(PoolProgress& progress) {
  // In steps, so that it can be called off.
  for (uint64_t at = 0; at < map_bytes_; at += kStepBytes) {
    if (progress.cancelled.load()) fail("locking", ECANCELED);
    const uint64_t bytes = std::min(kStepBytes, map_bytes_ - at);
    if (::mlock(base_ + at, bytes) != 0) {
      const std::string reason = std::strerror(errno);
      throw PoolLimitError(
          "locking " + std::to_string(map_bytes_) + " bytes failed (" + reason +
          "): raise RLIMIT_MEMLOCK (ulimit -l unlimited), grant CAP_IPC_LOCK, or set lock_memory to no");
    }
    progress.locked_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
}

void Pool::allocate_and_touch(bool transparent, PoolProgress& progress) {
  const uint64_t step = std::max(kStepBytes, backing_->reserved_page_bytes());
  const uint64_t steps = (map_bytes_ + step - 1) / step;
  const auto thread_count = static_cast<unsigned>(
      std::min<uint64_t>(steps, std::clamp(std::thread::hardware_concurrency(), 1u, kTouchThreadsMax)));
  // What was left by an earlier process lies as it lies: making its pages huge would copy them.
  PageToucher toucher(base_, transparent && !backing_->adopted());
  std::atomic<uint64_t> next{0};
  std::atomic<int> error{0};
  const auto work = [&] {
    for (uint64_t i = next.fetch_add(1); i < steps && error.load() == 0; i = next.fetch_add(1)) {
      const uint64_t from = i * step;
      const uint64_t bytes = std::min(step, map_bytes_ - from);
      const int failed = toucher.touch(from, bytes, progress.cancelled);
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
  if (failed == 0) failed = allocate_file(backing_->fd(), map_bytes_, &progress.cancelled);
  if (failed == EHWPOISON)
    throw PoolLimitError(
        "the machine says that memory of it is broken (the kernel's log has more): remove the file of the "
        "pool, "
        "if it has one, which costs warm pages only, and have the memory tested");
  if (failed == ENOMEM || failed == EFAULT || failed == ENOSPC)
    throw PoolLimitError("a memory pool of " + std::to_string(map_bytes_) +
                         " bytes can't be allocated: the machine, its memory cgroup, or the file system of "
                         "the pool ran out; lower the capacity");
  if (failed != 0) fail("allocating", failed);
}

}  // namespace kvstore
