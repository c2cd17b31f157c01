// Bytes of the disk tier's file, as its threads read and write them. An interface, so that tests can have one that fails
// or hangs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace kvstore {

class DiskIo {
 public:
  static constexpr uint64_t kBlockBytes =
      4096;  // offsets, sizes and memory of every call are multiples of it

  virtual ~DiskIo() = default;
  // Blocks. 0, or the errno of what went wrong; fewer bytes than asked for are EIO. Any thread.
  virtual int read(uint64_t offset, void* to, uint64_t size) = 0;
  virtual int write(uint64_t offset, const void* from, uint64_t size) = 0;
  virtual bool is_direct() const = 0;        // past the page cache
  virtual bool is_preallocated() const = 0;  // no write can be short of space
};

// A file of `capacity_bytes`, made if there is none, locked against a second process. O_DIRECT where the file system has
// it, the page cache elsewhere; preallocated where there is space for it, else as writes come. Throws std::system_error
// naming the path.
std::unique_ptr<DiskIo> open_disk_file(const std::string& path, uint64_t capacity_bytes);

}  // namespace kvstore
