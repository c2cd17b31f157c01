// The process's use of UCX: one context, and memory registered with its devices.
//
// Thread-safe. A context is made by the first who asks, lives as long as the process, and is of use only in the process that made
// it: in a forked child everything here is refused or leaked, never touched.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transports/ucx/core/library.hpp"

namespace kvstore {

// Set to 1, pages may travel over UCX's tcp transport, which checks no address: any peer may then read and write all of the
// process's memory. For tests on machines without RDMA.
constexpr const char* kUcxUnsafeVariable = "KVSTORE_UCX_ALLOW_UNSAFE_TRANSPORTS";

class UcxContext {
 public:
  // Throws UcxError: no library, no RDMA device, or after a fork. Only the connected transports of InfiniBand and RoCE devices are
  // allowed in the context, so that UCX can't choose its tcp or shared memory ones for anything.
  static std::shared_ptr<UcxContext> open(const std::string& library_path);

  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  const ucx::Api& api() const { return library_.api(); }
  const UcxLibrary& library() const { return library_; }
  ucx::Context* handle() const { return handle_; }
  bool in_own_process() const;

 private:
  UcxContext(const UcxLibrary& library, ucx::Context* handle);
  const UcxLibrary& library_;
  ucx::Context* const handle_;
  const pid_t pid_;
};

// A stretch of memory that local operations may read and write and peers may read, never write.
class UcxMemory {
 public:
  // The memory stays in place as long as the object lives. Throws UcxError.
  UcxMemory(std::shared_ptr<UcxContext> context, void* address, size_t size_bytes);
  ~UcxMemory();
  UcxMemory(const UcxMemory&) = delete;
  UcxMemory& operator=(const UcxMemory&) = delete;

  ucx::Memory* handle() const { return handle_; }
  uint64_t address() const { return address_; }
  uint64_t size_bytes() const { return size_bytes_; }
  bool contains(const void* at, uint64_t size) const {
    const auto from = reinterpret_cast<uint64_t>(at);
    return from >= address_ && size <= size_bytes_ && from - address_ <= size_bytes_ - size;
  }
  // What a peer needs to read it.
  const std::vector<uint8_t>& remote_key() const { return remote_key_; }

 private:
  const std::shared_ptr<UcxContext> context_;
  const uint64_t address_;
  const uint64_t size_bytes_;
  ucx::Memory* handle_ = nullptr;
  std::vector<uint8_t> remote_key_;
};

// Registered memory of our own.
class UcxBuffer {
 public:
  // Throws UcxError or std::bad_alloc.
  UcxBuffer(std::shared_ptr<UcxContext> context, size_t size_bytes);
  ~UcxBuffer();
  UcxBuffer(const UcxBuffer&) = delete;
  UcxBuffer& operator=(const UcxBuffer&) = delete;

  uint8_t* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  const UcxMemory& memory() const { return *memory_; }

 private:
  const size_t size_bytes_;
  uint8_t* data_ = nullptr;
  std::unique_ptr<UcxMemory> memory_;
};

}  // namespace kvstore
