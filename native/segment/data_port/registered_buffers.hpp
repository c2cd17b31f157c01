// Memory of a same-host client that the segment may copy puts from: a descriptor, mapped read-only when the
// file is sealed against shrinking and has all its blocks, read with pread otherwise: a mapped file that its owner
// shrinks is SIGBUS, and a page that is missing in it is allocated by whoever reads it, at the segment's cost. What is
// mapped costs page tables, so that has a budget; and what is over it is read with pread, too. One session's, one
// thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "segment/budgets.hpp"

namespace kvstore {

class RegisteredBuffers {
 public:
  enum class Mode : uint32_t { kMapped = 1, kPread = 2 };
  struct Registered {
    uint32_t id;
    Mode mode;
  };

  explicit RegisteredBuffers(Budgets& budgets)
      : mapped_bytes_(budgets.registered_bytes), count_(budgets.registered_buffers) {}
  ~RegisteredBuffers();
  RegisteredBuffers(const RegisteredBuffers&) = delete;
  RegisteredBuffers& operator=(const RegisteredBuffers&) = delete;

  // Takes `fd` over, whatever comes of it. Nothing, and counted: there are as many as may be, here or in all. Throws
  // wire::WireError: not a regular file, shorter than `bytes`.
  std::optional<Registered> add(int fd, uint64_t bytes);
  // Throws wire::WireError for an unknown id.
  void remove(uint32_t id);

  // Checks that the buffer exists and, where the owner can still change that, is as long as it was
  // registered. Throws wire::WireError. Call it at every use, before the first copy.
  uint64_t usable_bytes(uint32_t id);
  // Copies [offset, +size) to `to` and continues the CRC-32C over what was written. The range must have been
  // checked against usable_bytes(). False when the file no longer gives these bytes.
  bool copy(uint32_t id, uint64_t offset, uint64_t size, uint8_t* to, uint32_t& crc) const;

 private:
  struct Buffer {
    int fd;
    uint64_t bytes;
    const uint8_t* map;  // null in pread mode
    uint64_t blocks;     // of the file, when it was mapped
    uint64_t uses;
  };
  // Nothing when it is to be read with pread: also where memory has not been touched yet.
  void try_to_map(Buffer& buffer);
  void release(const Buffer& buffer) noexcept;
  const Buffer& at(uint32_t id) const;
  Buffer& at(uint32_t id) { return const_cast<Buffer&>(std::as_const(*this).at(id)); }

  BudgetShare mapped_bytes_;
  BudgetShare count_;
  std::map<uint32_t, Buffer> buffers_;
  uint32_t next_id_ = 1;
};

}  // namespace kvstore
