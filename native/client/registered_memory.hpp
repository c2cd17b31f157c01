// Memory that stays in place for long: where it is also a file, a segment on the same host can copy out of it by itself; and a
// transport can register it with its device.
//
// Thread-safe. Ranges never overlap. A range's descriptor lives until the last holder of the range is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.hpp"

namespace kvstore {

struct RegisteredRange {
  uint64_t id;  // never reused within the process
  uint64_t address;
  uint64_t size_bytes;
  int fd;  // address is offset 0 of this file; owned; -1: no file

  // What a transport keeps with the range: one object for each key, made by the first who asks, gone with the range.
  template <typename T>
  std::shared_ptr<T> kept(const void* key) const {
    const MutexLock lock(kept_mutex_);
    auto& object = kept_[key];
    if (object == nullptr) object = std::make_shared<T>();
    return std::static_pointer_cast<T>(object);
  }

  RegisteredRange(uint64_t id_in, uint64_t address_in, uint64_t size_bytes_in, int fd_in)
      : id(id_in), address(address_in), size_bytes(size_bytes_in), fd(fd_in) {}
  ~RegisteredRange();
  RegisteredRange(const RegisteredRange&) = delete;
  RegisteredRange& operator=(const RegisteredRange&) = delete;

  bool contains(uint64_t at, uint64_t size) const {
    return at >= address && size <= size_bytes && at - address <= size_bytes - size;
  }

 private:
  mutable Mutex kept_mutex_;
  mutable std::map<const void*, std::shared_ptr<void>> kept_ GUARDED_BY(kept_mutex_);
};

class RegisteredMemory {
 public:
  // The descriptor's file is opened again, to be read only; -1: the memory is no file. The same range again replaces nothing and is true; false when the
  // range is empty, overlaps another one, or the descriptor is no file of at least that size.
  bool add(uint64_t address, uint64_t size_bytes, int fd);
  void remove(uint64_t address);
  // The range that holds `address`, or null.
  std::shared_ptr<const RegisteredRange> find(uint64_t address) const;
  // Whether the registration is still there.
  bool current(uint64_t id) const;

  // The SharedBuffers of this process, known to every client of it; a forked child has none of its parent's.
  static RegisteredMemory& shared_buffers();

 private:
  mutable Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const RegisteredRange>> by_address_ GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> address_by_id_ GUARDED_BY(mutex_);
};

}  // namespace kvstore
