// Huge pages of 2 MiB set aside for a test, as far as the machine lets it have some; as many as before when it is over.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace kvstore::testing {

class ReservedHugePages {
 public:
  // One test at a time, of whatever process of this machine.
  explicit ReservedHugePages(uint64_t pages) : lock_(::open(kCounts, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    ::flock(lock_, LOCK_EX);
    before_ = number("nr_hugepages");
    std::ofstream(path("nr_hugepages")) << before_ + pages;
  }
  ~ReservedHugePages() {
    std::ofstream(path("nr_hugepages")) << before_;
    ::close(lock_);
  }
  ReservedHugePages(const ReservedHugePages&) = delete;
  ReservedHugePages& operator=(const ReservedHugePages&) = delete;

  uint64_t free() const { return number("free_hugepages") - number("resv_hugepages"); }

 private:
  static constexpr const char* kCounts = "/sys/kernel/mm/hugepages/hugepages-2048kB";
  static std::string path(const char* name) { return std::string(kCounts) + "/" + name; }
  static uint64_t number(const char* name) {
    uint64_t value = 0;
    std::ifstream(path(name)) >> value;
    return value;
  }

  const int lock_;
  uint64_t before_ = 0;
};

}  // namespace kvstore::testing
