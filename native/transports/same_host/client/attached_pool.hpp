// A segment's memory pool, mapped read-only into this process. Thread-safe; use() and generation() never leave the map.
//
// The whole pool has addresses, which cost nothing. What costs are page tables, 2 MiB for each GiB of small pages in use: these are
// bounded. The map is divided into windows, and when their tables come to more than is allowed, those of the window that was not
// used for the longest time are given back by mapping it anew. Windows that the kernel maps by huge pages have none worth that.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/mutex.hpp"
#include "protocol/data_codec.hpp"

namespace kvstore {

struct AttachedPoolLimits {
  uint64_t window_bytes = 32u << 20;     // a multiple of 2 MiB. To give back one takes under a millisecond
  uint64_t table_bytes_max = 32u << 20;  // of page tables: those of 16 GiB in small pages
};

class AttachedPool {
 public:
  // Takes the descriptor. Null unless it is a file in memory of at least geometry.map_bytes that nobody but its owner can make
  // smaller, and a memfd not even that one: a file that shrinks turns every read of the map into a possible SIGBUS.
  static std::unique_ptr<AttachedPool> attach(int fd, const data_codec::PoolGeometry& geometry,
                                              const AttachedPoolLimits& limits = {});
  ~AttachedPool();
  AttachedPool(const AttachedPool&) = delete;
  AttachedPool& operator=(const AttachedPool&) = delete;

  // Bytes of the pool, mapped as long as it lives; within the life of the pool.
  class Use {
   public:
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { pool_.end_use(first_, end_); }
    // Null when they don't lie in the map, or can't be mapped any more.
    const uint8_t* data() const { return data_; }

   private:
    friend class AttachedPool;
    Use(AttachedPool& pool, uint64_t offset, uint64_t size);

    AttachedPool& pool_;
    uint64_t first_ = 0, end_ = 0;  // windows
    const uint8_t* data_ = nullptr;
  };

  // False: somebody has made the file shorter, and reading the map ends this process.
  bool is_whole() const;
  const data_codec::PoolGeometry& geometry() const { return geometry_; }
  // The bytes [offset, offset + size).
  Use use(uint64_t offset, uint64_t size) { return Use(*this, offset, size); }
  // The slot's generation now, read after everything read before this call; odd (never valid) when there is no such slot.
  uint64_t generation(uint32_t slot);

  // Page tables that the windows have at most; of small pages all that could be, of those that are known to be huge none.
  uint64_t table_bytes() EXCLUDES(mutex_);

 private:
  struct Window {
    std::atomic<uint32_t> users{0};  // or kRemapping, kLost
    std::atomic<uint64_t> last_use{0};
    std::atomic<bool> counted{false};  // in table_bytes_; changes with mutex_
    uint64_t table_bytes = 0;          // as they are counted; with mutex_
  };
  static constexpr uint32_t kRemapping = 1u << 31;
  static constexpr uint32_t kLost = 1u << 30;  // it could not be mapped anew

  AttachedPool(int fd, uint8_t* base, uint64_t size_bytes, const data_codec::PoolGeometry& geometry,
               const AttachedPoolLimits& limits);
  void populate() EXCLUDES(mutex_);
  bool begin_use(uint64_t window) EXCLUDES(mutex_);
  void end_use(uint64_t first, uint64_t end);
  void count(uint64_t window) EXCLUDES(mutex_);
  bool give_back_coldest(uint64_t but) REQUIRES(mutex_);
  bool map_anew(uint64_t window);
  uint64_t size_of(uint64_t window) const;

  const int fd_;
  uint8_t* const base_;
  const uint64_t size_bytes_;  // of the map: whole pages of the file
  const data_codec::PoolGeometry geometry_;
  const AttachedPoolLimits limits_;
  const uint64_t window_count_;
  const std::unique_ptr<Window[]> windows_;
  std::atomic<uint64_t> now_{1};  // moves on with each window that comes into use
  Mutex mutex_;
  uint64_t table_bytes_ GUARDED_BY(mutex_) = 0;
  std::atomic<bool> stopping_{false};
  std::thread
      populator_;  // takes the page faults of the map ahead of the first copies, as far as the bound goes
};

}  // namespace kvstore
