// A disk in memory that outlives whoever uses it, and that fails, hangs or loses what it is told to.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "segment/disk/disk_io.hpp"

namespace kvstore::testing {

struct DiskMedium {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<uint8_t> bytes;
  int read_error = 0, write_error = 0;  // of every call
  bool hangs = false;
  int hanging = 0;
  uint64_t writes = 0, reads = 0;
  int64_t bytes_until_cut =
      -1;  // the write that reaches this is done in part, and those behind it are not done

  void set(int DiskMedium::* what, int value) {
    const std::lock_guard<std::mutex> lock(mutex);
    this->*what = value;
  }
  void hang(bool on) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      hangs = on;
    }
    changed.notify_all();
  }
  int now_hanging() {
    const std::lock_guard<std::mutex> lock(mutex);
    return hanging;
  }
};

class MemoryDisk final : public DiskIo {
 public:
  explicit MemoryDisk(std::shared_ptr<DiskMedium> medium) : medium_(std::move(medium)) {}

  int read(uint64_t offset, void* to, uint64_t size) override {
    std::unique_lock<std::mutex> lock(medium_->mutex);
    ++medium_->reads;
    wait(lock);
    if (medium_->read_error != 0) return medium_->read_error;
    if (offset + size > medium_->bytes.size()) return EIO;
    std::memcpy(to, medium_->bytes.data() + offset, size);
    return 0;
  }
  int write(uint64_t offset, const void* from, uint64_t size) override {
    std::unique_lock<std::mutex> lock(medium_->mutex);
    ++medium_->writes;
    wait(lock);
    if (medium_->write_error != 0) return medium_->write_error;
    if (offset + size > medium_->bytes.size()) return EIO;
    uint64_t done = size;
    if (medium_->bytes_until_cut >= 0) {
      done = std::min<uint64_t>(size, static_cast<uint64_t>(medium_->bytes_until_cut));
      medium_->bytes_until_cut -= static_cast<int64_t>(done);
    }
    std::memcpy(medium_->bytes.data() + offset, from, done);
    return 0;
  }
  bool is_direct() const override { return false; }
  bool is_preallocated() const override { return true; }

 private:
  void wait(std::unique_lock<std::mutex>& lock) {
    ++medium_->hanging;
    medium_->changed.wait(lock, [this] { return !medium_->hangs; });
    --medium_->hanging;
  }
  const std::shared_ptr<DiskMedium> medium_;
};

// Opens it, at the size that is asked for.
inline auto opener(const std::shared_ptr<DiskMedium>& medium) {
  return [medium](const std::string&, uint64_t capacity_bytes) -> std::unique_ptr<DiskIo> {
    const std::lock_guard<std::mutex> lock(medium->mutex);
    medium->bytes.resize(capacity_bytes);
    return std::make_unique<MemoryDisk>(medium);
  };
}

// True as soon as the condition holds, false when that takes too long.
template <typename Condition>
bool comes(Condition&& condition, std::chrono::seconds within = std::chrono::seconds(30)) {
  const auto end = std::chrono::steady_clock::now() + within;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace kvstore::testing
