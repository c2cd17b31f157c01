// The memory of a segment: one memfd, [slot table | data], mapped writable here and nowhere else. It is
// allocated and touched when it is made, so that running out of memory is an error at start and not a SIGBUS
// later. Sealed against growing, shrinking and any new writable map. Immutable after construction: any thread
// may use it as long as it lives.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>

namespace kvstore {

// A limit of the system forbids the pool; what() names it and how to raise it.
class PoolLimitError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct PoolLayout {
  uint64_t table_bytes;
  uint64_t data_offset;  // in the map, a multiple of 2 MiB
  uint64_t map_bytes;
};
PoolLayout pool_layout(uint64_t capacity_bytes, uint32_t slot_count, uint32_t slot_bytes);

// How far the making of a pool is, for another thread. Once cancelled it ends within the time of touching 64 MiB a thread.
struct PoolProgress {
  std::atomic<uint64_t> touched_bytes{0};
  std::atomic<bool> cancelled{false};
};

class Pool {
 public:
  // Throws PoolLimitError, or std::system_error for anything unforeseen, among it ECANCELED. `progress` may be null.
  Pool(const PoolLayout& layout, bool lock_memory, PoolProgress* progress = nullptr);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  uint8_t* base() const { return base_; }
  uint64_t map_bytes() const { return map_bytes_; }
  // Opened read-only: what clients of the same host get.
  int read_only_fd() const { return read_only_fd_; }

 private:
  void allocate_and_touch(PoolProgress& progress);
  void lock(const PoolProgress& progress);
  void release();

  uint64_t map_bytes_;
  int fd_ = -1;
  int read_only_fd_ = -1;
  uint8_t* base_ = nullptr;
};

}  // namespace kvstore
