// Memory of a writer elsewhere that the segment reads by itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace kvstore {

// One session's, one thread's.
class RemoteMemory {
 public:
  using Clock = std::chrono::steady_clock;
  struct Read {
    uint64_t offset;  // in the buffer
    uint64_t size;
    uint8_t* to;
  };

  virtual ~RemoteMemory() = default;
  // Size of a registered buffer. Throws wire::WireError for an unknown id.
  virtual uint64_t usable_bytes(uint32_t buffer_id) const = 0;
  // Its writer takes it back. Throws wire::WireError for an unknown id.
  virtual void remove(uint32_t buffer_id) = 0;
  // Does all reads, whose ranges were checked against usable_bytes(), or throws ConnectionEnded. Either way nothing writes to
  // any `to` afterwards.
  virtual void read(uint32_t buffer_id, const std::vector<Read>& reads, Clock::time_point deadline) = 0;
};

}  // namespace kvstore
