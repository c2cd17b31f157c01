// Memory of a pool can be taken away while it is used: its file is made shorter, its file system is full where pages were given
// back, or the machine's memory breaks. Whoever touches it then gets a SIGBUS, and there is nothing to go on with. This has the
// process say what has happened, in one line on stderr, before the signal ends it.
#pragma once

#include <cstdint>
#include <string>

namespace kvstore {

class PoolFaultNote {
 public:
  // `path`: of the pool's file, or empty. The first one in the process takes over SIGBUS; what handled it before has it next.
  PoolFaultNote(const uint8_t* base, uint64_t size_bytes, const std::string& path) noexcept;
  ~PoolFaultNote();
  PoolFaultNote(const PoolFaultNote&) = delete;
  PoolFaultNote& operator=(const PoolFaultNote&) = delete;

 private:
  int place_ = -1;
};

}  // namespace kvstore
