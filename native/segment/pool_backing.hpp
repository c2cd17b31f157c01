// What the memory of a pool is: an anonymous file that ends with the process, or a named one that outlives it. A backing has the
// size, the owner and the lock right; what the bytes mean is not its matter. The pool maps and touches them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/huge_pages.hpp"

namespace kvstore {

// A limit of the system forbids the pool; what() names it and how to raise it.
class PoolLimitError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The place that was asked for can't hold the pool: no memory file system, too small, not writable. Nothing is left there.
class PoolPlaceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// There is a pool that must not be used: another process has it, it is somebody else's, or not what was asked for. It is untouched.
class PoolRefusedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The first bytes of every pool file, for whoever knows what they mean.
constexpr uint64_t kPoolHeadBytes = 4096;
// Looks at the head of a pool that an earlier process has left, before anything else is done with it; throws PoolRefusedError to
// leave it alone. Not called for a new one. All zeros when that process died before it had written one.
using ExaminePool = std::function<void(const uint8_t* head, uint64_t size_bytes)>;

class PoolBacking {
 public:
  virtual ~PoolBacking() = default;

  // Open for reading and writing, of file_bytes(); owned by the backing.
  virtual int fd() const = 0;
  // At least what was asked for, in whole pages of the file.
  virtual uint64_t file_bytes() const = 0;
  // Of the pages set aside by the administrator that it lies on; 0 when it is on ordinary or transparently huge ones.
  virtual uint64_t reserved_page_bytes() const = 0;
  // True when the bytes are those that an earlier process has left.
  virtual bool adopted() const = 0;
  // How much memory it has already: an adopted one takes so much less of the system.
  virtual uint64_t allocated_bytes() const = 0;
  // Called once, when it is mapped and has all its memory: from now on nobody else makes it smaller or writes to it, as far as the
  // kind can promise that.
  virtual void seal() = 0;
  // From now on another process may have it: whoever lets go writes to it no more. Idempotent.
  virtual void let_go() noexcept = 0;
  // The making of the pool failed: nothing of a new one stays behind. An adopted one is left as it is.
  virtual void abandon() noexcept = 0;
};

// Sealed against growing, shrinking and every further writable map; it ends with the last process that has it open.
// Throws PoolLimitError, std::system_error.
std::unique_ptr<PoolBacking> make_memfd_backing(uint64_t bytes, HugePages pages);

// The file at `path`, on tmpfs or hugetlbfs: made (0600) or adopted, and locked for this process. A file of another size is refused.
// Throws PoolPlaceError, PoolRefusedError, PoolLimitError, std::system_error.
std::unique_ptr<PoolBacking> make_file_backing(const std::string& path, uint64_t bytes, HugePages pages,
                                               const ExaminePool& examine);

}  // namespace kvstore
