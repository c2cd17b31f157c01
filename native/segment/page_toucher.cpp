#include "segment/page_toucher.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace kvstore {
namespace {

constexpr uint64_t kHugePage = 2ull << 20;
constexpr uint64_t kStepBytes = 64ull << 20;  // between two looks whether it is cancelled
// Memory is too fragmented then: looking for more would only take time.
constexpr unsigned kRefusalsMax = 16;

// Maps the pages of the range in, writable. Kernels before 5.14 lack the advice: there each page is written to, by an atomic
// addition of nothing, since a pool that is adopted has readers and bytes.
int populate(uint8_t* from, uint64_t bytes) {
  do {
    if (::madvise(from, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  } while (errno == EINTR);
  if (errno != EINVAL) return errno;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  for (uint64_t at = 0; at < bytes; at += page) __atomic_fetch_add(from + at, 0, __ATOMIC_RELAXED);
  return 0;
}

}  // namespace

int PageToucher::touch(uint64_t from, uint64_t bytes, const std::atomic<bool>& cancelled) {
  for (uint64_t at = from; at < from + bytes; at += kStepBytes) {
    if (cancelled.load()) return ECANCELED;
    const uint64_t size = std::min(kStepBytes, from + bytes - at);
    if (make_huge_.load(std::memory_order_relaxed)) make_huge(at, size / kHugePage * kHugePage);
    if (cancelled.load()) return ECANCELED;
    const int failed = populate(base_ + at, size);
    if (failed != 0) return failed;
  }
  return 0;
}

// Each by its first small page, which the kernel then widens. Where the machine gives shared memory huge pages anyway, the first
// fault has brought one and there is nothing left to do. A call of the advice waits for every CPU: many pages by one.
void PageToucher::make_huge(uint64_t from, uint64_t bytes) {
  const auto small_page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  for (uint64_t at = from; at < from + bytes; at += kHugePage)
    if (populate(base_ + at, small_page) != 0) return;
  if (bytes == 0 || ::madvise(base_ + from, bytes, MADV_COLLAPSE) == 0) {
    refused_.store(0, std::memory_order_relaxed);
    return;
  }
  if (errno == EINVAL || refused_.fetch_add(1, std::memory_order_relaxed) >= kRefusalsMax)
    make_huge_.store(false, std::memory_order_relaxed);
}

}  // namespace kvstore
