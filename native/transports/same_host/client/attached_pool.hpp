// A segment's memory pool, mapped read-only into this process. Thread-safe; at() and generation() never leave the map.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "protocol/data_codec.hpp"

namespace kvstore {

class AttachedPool {
 public:
  // Takes the descriptor. Null unless it is a file of at least geometry.map_bytes that is sealed against shrinking: a file that
  // its owner may shrink turns every read of the map into a possible SIGBUS.
  static std::unique_ptr<AttachedPool> attach(int fd, const data_codec::PoolGeometry& geometry);
  ~AttachedPool();
  AttachedPool(const AttachedPool&) = delete;
  AttachedPool& operator=(const AttachedPool&) = delete;

  const data_codec::PoolGeometry& geometry() const { return geometry_; }
  // The bytes [offset, offset + size), or null when they don't lie in the map.
  const uint8_t* at(uint64_t offset, uint64_t size) const {
    return offset <= geometry_.map_bytes && size <= geometry_.map_bytes - offset ? base_ + offset : nullptr;
  }
  // The slot's generation now, read after everything read before this call; odd (never valid) when there is no such slot.
  uint64_t generation(uint32_t slot) const;

 private:
  AttachedPool(const uint8_t* base, const data_codec::PoolGeometry& geometry);
  void populate() const;

  const uint8_t* const base_;
  const data_codec::PoolGeometry geometry_;
  std::atomic<bool> stopping_{false};
  std::thread populator_;  // takes the page faults of the whole map ahead of the first copies
};

}  // namespace kvstore
