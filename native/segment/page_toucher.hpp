// Gives a fresh or adopted map all its memory, without changing a byte of what is there.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvstore {

class PageToucher {
 public:
  // Of a writable shared map at a multiple of 2 MiB. `make_huge`: into transparent huge pages as far as they can be had, whatever
  // the machine's setting for shared memory.
  PageToucher(uint8_t* base, bool make_huge) : base_(base), make_huge_(make_huge) {}

  // Several threads at a time, each a range of its own that begins at a multiple of 2 MiB. Returns 0 or an errno; ECANCELED
  // within the time of 64 MiB once `cancelled` is set.
  int touch(uint64_t from, uint64_t bytes, const std::atomic<bool>& cancelled);

 private:
  void make_huge(uint64_t from, uint64_t bytes);

  uint8_t* const base_;
  std::atomic<bool> make_huge_;
  std::atomic<unsigned> refused_{0};  // in a row
};

}  // namespace kvstore
