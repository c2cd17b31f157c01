// The memory of a segment's pool together with what tells a later process what is in it: superblock and journal ring. It is one
// that an earlier process has left whole (warm), or a new one.
//
//     [superblock | slots and objects (pool_layout) | journal ring]
//
// A pool that can't be used again is never written over: clients may have it mapped and read from it. Its file is removed, its
// memory given back, and another file made. A pool that is not this segment's is refused and stays as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "segment/journal_ring.hpp"
#include "segment/pool.hpp"
#include "segment/superblock.hpp"

namespace kvstore {

struct KeptPoolOptions {
  PoolOptions pool;  // of which `examine` is this class's
  PoolId new_pool_id{};
  SegmentId segment_id{};
  uint64_t capacity_bytes = 0;
  bool empty = false;  // whatever an earlier process has left: begin anew
};

class KeptPool {
 public:
  // Throws as Pool does. `progress` may be null.
  KeptPool(const PoolLayout& layout, const KeptPoolOptions& options, PoolProgress* progress);

  // One entry for so many bytes of objects, within bounds: what may be on its way to a master that is away.
  static uint64_t journal_entries_for(uint64_t capacity_bytes);

  Pool& memory() { return *pool_; }
  const Pool& memory() const { return *pool_; }
  // True when it holds what an earlier process has left.
  bool warm() const { return warm_; }
  // Why it does not: for a log.
  const std::string& fresh_reason() const { return fresh_reason_; }
  // The new one, or that of the pool that was kept.
  const PoolId& pool_id() const { return pool_id_; }
  // Null for memory that ends with the process.
  JournalRing* ring() { return ring_ ? &*ring_ : nullptr; }
  // What the ring held at the beginning.
  const JournalRing::Recovered& journal() const { return journal_; }

  // A new pool is whole from now on.
  void formatted() noexcept;

  // That the pages belong to; all zero: none yet.
  ClusterId cluster_id() const { return superblock_ ? superblock_->cluster_id() : ClusterId{}; }
  void set_cluster_id(const ClusterId& cluster_id) noexcept;

 private:
  void open(const KeptPoolOptions& options, PoolProgress* progress);
  bool take_over();
  void format(const KeptPoolOptions& options);

  PoolShape shape_;
  PoolLayout layout_;
  PoolId pool_id_{};
  std::string fresh_reason_;
  bool warm_ = false;
  std::unique_ptr<Pool> pool_;
  std::optional<Superblock> superblock_;
  std::optional<JournalRing> ring_;
  JournalRing::Recovered journal_;
};

// Removes a pool file and gives its memory back, though a client may have it mapped: it reads zeros then. Throws
// PoolRefusedError, and touches nothing, for what is no pool of kvstore's and for one that a process has. Nothing there:
// nothing is done.
void discard_pool_file(const std::string& path);

// The capacity of the pool at `path`, as far as its first page is whole; 0 for anything else, and where nothing is.
uint64_t pool_file_capacity_bytes(const std::string& path) noexcept;

}  // namespace kvstore
