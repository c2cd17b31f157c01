// Memory in a memfd of its own, sealed against shrinking: a same-host segment can map it and copy puts straight out of it.
//
// The buffer registers itself with RegisteredMemory::shared_buffers() for its lifetime. Thread-safe (immutable).
//
// It is its maker's alone: a forked child has no map of it (touching the address is a SIGSEGV there), and what the child does with
// its copy of the object leaves the bytes as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/process_owner.hpp"

namespace kvstore {

class SharedBuffer {
 public:
  // Allocates and touches it all. Throws std::invalid_argument for a size of zero, std::system_error naming the step that failed.
  explicit SharedBuffer(size_t size_bytes);
  // Frees the pages at once, also where a segment still has them mapped.
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  int fd() const { return fd_; }
  // False in a forked child, which must not touch data().
  bool is_mapped_here() const { return owner_.is_here(); }

 private:
  const ProcessOwner owner_;
  size_t size_bytes_;
  int fd_ = -1;
  void* data_ = nullptr;
};

}  // namespace kvstore
