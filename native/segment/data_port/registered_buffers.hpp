// Memory of a same-host client that the segment may copy puts from: a descriptor, mapped read-only when the
// file is sealed against shrinking, read with pread otherwise (a mapped file that its owner shrinks is
// SIGBUS). One session's, one thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace kvstore {

class RegisteredBuffers {
 public:
  static constexpr size_t kBuffersMax = 256;
  enum class Mode : uint32_t { kMapped = 1, kPread = 2 };
  struct Registered {
    uint32_t id;
    Mode mode;
  };

  RegisteredBuffers() = default;
  ~RegisteredBuffers();
  RegisteredBuffers(const RegisteredBuffers&) = delete;
  RegisteredBuffers& operator=(const RegisteredBuffers&) = delete;

  bool is_full() const { return buffers_.size() >= kBuffersMax; }
  // Takes `fd` over, whatever comes of it. Throws wire::WireError: not a regular file, shorter than `bytes`. Not while it
  // is full.
  Registered add(int fd, uint64_t bytes);
  // Throws wire::WireError for an unknown id.
  void remove(uint32_t id);

  // Checks that the buffer exists and, where the owner can still change that, is as long as it was
  // registered. Throws wire::WireError. Call it at every use, before the first copy.
  uint64_t usable_bytes(uint32_t id) const;
  // Copies [offset, +size) to `to` and continues the CRC-32C over what was written. The range must have been
  // checked against usable_bytes(). False when the file no longer gives these bytes.
  bool copy(uint32_t id, uint64_t offset, uint64_t size, uint8_t* to, uint32_t& crc) const;

 private:
  struct Buffer {
    int fd;
    uint64_t bytes;
    const uint8_t* map;  // null in pread mode
  };
  static void release(const Buffer& buffer);
  const Buffer& at(uint32_t id) const;

  std::map<uint32_t, Buffer> buffers_;
  uint32_t next_id_ = 1;
};

}  // namespace kvstore
