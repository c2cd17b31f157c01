// A directory on a tmpfs for pool files of a test, gone with everything in it at the end.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "segment/pool.hpp"

namespace kvstore {

class PoolPlace {
 public:
  PoolPlace() { ::mkdir(directory_.c_str(), 0700); }
  ~PoolPlace() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  PoolPlace(const PoolPlace&) = delete;
  PoolPlace& operator=(const PoolPlace&) = delete;

  std::string file(const std::string& name) const { return directory_ + "/" + name; }

 private:
  static inline int next_ = 0;
  const std::string directory_ =
      "/dev/shm/kvstore-test-" + std::to_string(::getpid()) + "-" + std::to_string(next_++);
};

}  // namespace kvstore
