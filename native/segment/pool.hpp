// The memory of a segment: one file, [slot table | data], mapped writable here and nowhere else. It is allocated and touched when
// the pool is made, so that running out of memory is an error at start and not a SIGBUS later. Immutable after construction: any
// thread may use it as long as it lives. What the file is, and whether it outlives the process: pool_backing.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/huge_pages.hpp"
#include "segment/pool_backing.hpp"
#include "segment/pool_fault.hpp"

namespace kvstore {

struct PoolLayout {
  uint64_t table_bytes;
  uint64_t data_offset;  // in the map, a multiple of 2 MiB
  uint64_t map_bytes;
};
PoolLayout pool_layout(uint64_t capacity_bytes, uint32_t slot_count, uint32_t slot_bytes);

struct PoolOptions {
  std::string path;  // of a file that outlives the process; empty: a sealed memfd, which does not
  HugePages huge_pages = HugePages::kTransparent;
  std::vector<uint32_t> numa_nodes;  // where new memory comes from; empty: wherever the kernel takes it
  bool lock_memory = false;
  ExaminePool examine;  // of what an earlier process has left at `path`; null: whatever it is
};

// How far the making of a pool is, for another thread. Once cancelled it ends within the time of touching 64 MiB a thread, or one
// page of 1 GiB.
struct PoolProgress {
  std::atomic<uint64_t> touched_bytes{0};
  std::atomic<uint64_t> total_bytes{0};  // 0 until it is known
  std::atomic<uint64_t> locked_bytes{0};
  std::atomic<uint64_t> scanned_bytes{0};    // of what an earlier process has left: how much was verified
  std::atomic<uint64_t> adopted_objects{0};  // of those that were verified: how many can be found again
  std::atomic<bool> cancelled{false};
};

class Pool {
 public:
  // Throws PoolLimitError, PoolPlaceError, PoolRefusedError, or std::system_error for anything unforeseen, among it ECANCELED;
  // a file that was new is gone then, and one that was there is as it was. `progress` may be null.
  Pool(const PoolLayout& layout, const PoolOptions& options, PoolProgress* progress = nullptr);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  uint8_t* base() const { return base_; }
  uint64_t map_bytes() const { return map_bytes_; }
  // Opened read-only: what clients of the same host get.
  int read_only_fd() const { return read_only_fd_; }
  // True when the bytes are those that an earlier process has left; otherwise all are zero.
  bool adopted() const { return backing_->adopted(); }
  // Of the huge pages that were set aside for it; 0 on ordinary or transparently huge ones.
  uint64_t reserved_page_bytes() const { return backing_->reserved_page_bytes(); }
  // For who is done with writing, and lives on: another pool, here or in another process, may have the file. The bytes stay readable.
  void let_go() const noexcept { backing_->let_go(); }

 private:
  void make(const PoolOptions& options, PoolProgress& progress);
  void check_limits(const PoolOptions& options) const;
  void bind(const PoolOptions& options) const;
  void allocate_and_touch(bool transparent, PoolProgress& progress);
  void lock(PoolProgress& progress);
  void release();

  const uint64_t map_bytes_;
  const std::unique_ptr<PoolBacking> backing_;
  int read_only_fd_ = -1;
  uint8_t* base_ = nullptr;
  std::optional<PoolFaultNote> fault_note_;
};

}  // namespace kvstore
