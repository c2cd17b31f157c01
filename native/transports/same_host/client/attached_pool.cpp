#include "transports/same_host/client/attached_pool.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace kvstore {
namespace {

constexpr uint64_t kTmpfs = 0x01021994;
constexpr uint64_t kHugetlbfs = 0x958458f6;
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

}  // namespace

std::unique_ptr<AttachedPool> AttachedPool::attach(int fd, const data_codec::PoolGeometry& geometry) {
  struct stat file{};
  void* base = MAP_FAILED;
  if (::fstat(fd, &file) == 0 && keeps_its_size(fd, file) && geometry.map_bytes > 0 &&
      static_cast<uint64_t>(file.st_size) >= geometry.map_bytes)
    base = ::mmap(nullptr, geometry.map_bytes, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  if (base == MAP_FAILED) return nullptr;
  return std::unique_ptr<AttachedPool>(new AttachedPool(static_cast<const uint8_t*>(base), geometry));
}

AttachedPool::AttachedPool(const uint8_t* base, const data_codec::PoolGeometry& geometry)
    : base_(base), geometry_(geometry) {
  ::madvise(const_cast<uint8_t*>(base_), geometry_.map_bytes, MADV_DONTFORK);
  try {
    populator_ = std::thread([this] { populate(); });
  } catch (const std::system_error&) {  // no thread to be had: the copies take the faults
  }
}

AttachedPool::~AttachedPool() {
  stopping_.store(true, std::memory_order_relaxed);
  if (populator_.joinable()) populator_.join();
  ::munmap(const_cast<uint8_t*>(base_), geometry_.map_bytes);
}

void AttachedPool::populate() const {
  for (uint64_t at = 0; at < geometry_.map_bytes && !stopping_.load(std::memory_order_relaxed);
       at += kPopulateStepBytes) {
    const uint64_t size = std::min(kPopulateStepBytes, geometry_.map_bytes - at);
    if (::madvise(const_cast<uint8_t*>(base_) + at, size, MADV_POPULATE_READ) != 0)
      return;  // an older kernel
  }
}

uint64_t AttachedPool::generation(uint32_t slot) const {
  if (slot >= geometry_.slot_count) return 1;
  const uint8_t* header = base_ + geometry_.table_offset + uint64_t{slot} * geometry_.slot_bytes;
  std::atomic_thread_fence(std::memory_order_acquire);
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(header), __ATOMIC_ACQUIRE);
}

}  // namespace kvstore
