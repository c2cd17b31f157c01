// Memory that direct IO can use, of a bounded total.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "segment/disk/disk_io.hpp"

namespace kvstore {

// What buffers may take together. The memory of some that were given back is kept. Thread-safe.
class DiskBufferSpace {
 public:
  explicit DiskBufferSpace(uint64_t bytes_max) : bytes_max_(bytes_max) {
    const MutexLock lock(mutex_);
    kept_.reserve(kKeptMax);  // free() must not fail
  }
  ~DiskBufferSpace() {
    const MutexLock lock(mutex_);
    for (const auto& [memory, bytes] : kept_) std::free(memory);
  }
  DiskBufferSpace(const DiskBufferSpace&) = delete;
  DiskBufferSpace& operator=(const DiskBufferSpace&) = delete;

  bool take(uint64_t bytes) {
    uint64_t used = used_.load();
    do {
      if (bytes > bytes_max_ || used > bytes_max_ - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void give_back(uint64_t bytes) { used_.fetch_sub(bytes); }
  uint64_t used() const { return used_.load(); }

  // {null, 0}: out of memory. The size is that asked for or more.
  std::pair<void*, uint64_t> allocate(uint64_t bytes) {
    {
      const MutexLock lock(mutex_);
      for (auto it = kept_.begin(); it != kept_.end(); ++it) {
        if (it->second < bytes || it->second > 2 * bytes) continue;
        const auto found = *it;
        kept_.erase(it);
        return found;
      }
    }
    void* memory = std::aligned_alloc(DiskIo::kBlockBytes, bytes);
    return {memory, memory == nullptr ? 0 : bytes};
  }
  void free(void* memory, uint64_t bytes) noexcept {
    {
      const MutexLock lock(mutex_);
      if (kept_.size() < kKeptMax) {
        kept_.emplace_back(memory, bytes);
        return;
      }
    }
    std::free(memory);
  }

 private:
  static constexpr size_t kKeptMax = 16;
  const uint64_t bytes_max_;
  std::atomic<uint64_t> used_{0};
  Mutex mutex_;
  std::vector<std::pair<void*, uint64_t>> kept_ GUARDED_BY(mutex_);
};

class DiskBuffer {
 public:
  // `bytes`: a multiple of the block size. Null when the space has no more. Throws std::bad_alloc.
  static std::shared_ptr<DiskBuffer> make(const std::shared_ptr<DiskBufferSpace>& space, uint64_t bytes) {
    if (!space->take(bytes)) return nullptr;
    std::shared_ptr<DiskBuffer> buffer;
    try {
      buffer.reset(new DiskBuffer(space, bytes));
    } catch (...) {
      space->give_back(bytes);
      throw;
    }
    std::tie(buffer->memory_, buffer->allocated_) = space->allocate(bytes);
    if (buffer->memory_ == nullptr) throw std::bad_alloc();
    return buffer;
  }
  ~DiskBuffer() {
    if (memory_ != nullptr) space_->free(memory_, allocated_);
    space_->give_back(bytes_);
  }
  DiskBuffer(const DiskBuffer&) = delete;
  DiskBuffer& operator=(const DiskBuffer&) = delete;

  uint8_t* data() { return static_cast<uint8_t*>(memory_); }
  uint64_t size() const { return bytes_; }

 private:
  DiskBuffer(std::shared_ptr<DiskBufferSpace> space, uint64_t bytes)
      : space_(std::move(space)), bytes_(bytes) {}

  const std::shared_ptr<DiskBufferSpace> space_;
  const uint64_t bytes_;
  void* memory_ = nullptr;
  uint64_t allocated_ = 0;
};

}  // namespace kvstore
