// An IO whose calls are told to the health of the disk, reads and writes apart: a full disk is read as ever.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "segment/disk/disk_health.hpp"
#include "segment/disk/disk_io.hpp"

namespace kvstore {

class WatchedDisk final : public DiskIo {
 public:
  WatchedDisk(std::unique_ptr<DiskIo> io, std::chrono::milliseconds slow)
      : reads(slow), writes(slow), io_(std::move(io)) {}

  int read(uint64_t offset, void* to, uint64_t size) override {
    const uint64_t call = reads.begin(DiskHealth::Clock::now());
    const int error = io_->read(offset, to, size);
    reads.end(call, error == 0, DiskHealth::Clock::now());
    if (error != 0) read_errors.fetch_add(1, std::memory_order_relaxed);
    return error;
  }
  int write(uint64_t offset, const void* from, uint64_t size) override {
    const uint64_t call = writes.begin(DiskHealth::Clock::now());
    const int error = io_->write(offset, from, size);
    writes.end(call, error == 0, DiskHealth::Clock::now());
    if (error != 0) write_errors.fetch_add(1, std::memory_order_relaxed);
    return error;
  }
  bool is_direct() const override { return io_->is_direct(); }
  bool is_preallocated() const override { return io_->is_preallocated(); }

  DiskHealth reads, writes;
  std::atomic<uint64_t> read_errors{0}, write_errors{0};

 private:
  const std::unique_ptr<DiskIo> io_;
};

}  // namespace kvstore
