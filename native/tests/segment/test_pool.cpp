#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/memory_limits.hpp"
#include "check.hpp"
#include "segment/pool.hpp"

using namespace kvstore;

namespace {

MemoryNeed need(uint64_t bytes) {
  MemoryNeed all;
  all.map_bytes = all.new_bytes = bytes;
  return all;
}

}  // namespace

TEST(the_pool_is_writable_here_and_readable_through_the_exported_descriptor) {
  const Pool pool(pool_layout(1 << 20, 1024, 128), {});
  pool.base()[5] = 42;
  void* map = ::mmap(nullptr, pool.map_bytes(), PROT_READ, MAP_SHARED, pool.read_only_fd(), 0);
  CHECK(map != MAP_FAILED);
  CHECK_EQ(int{static_cast<const uint8_t*>(map)[5]}, 42);
  CHECK(::mprotect(map, pool.map_bytes(), PROT_READ | PROT_WRITE) != 0);
  ::munmap(map, pool.map_bytes());
}

TEST(nobody_else_can_write_grow_or_shrink_it) {
  const Pool pool(pool_layout(1 << 20, 1024, 128), {});
  const int fd = pool.read_only_fd();
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  // Not even who opens the file anew for writing.
  const int again = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
  CHECK(again >= 0);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
  CHECK_EQ(errno, EPERM);
  CHECK(::pwrite(again, "x", 1, 0) < 0);
  CHECK(::ftruncate(again, 4096) != 0);
  CHECK(::ftruncate(again, 1 << 30) != 0);
  CHECK(::fcntl(again, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  ::close(again);
}

TEST(the_making_of_a_pool_tells_how_far_it_is_and_can_be_cancelled) {
  PoolProgress progress;
  const PoolLayout layout = pool_layout(200 << 20, 1024, 128);
  {
    const Pool pool(layout, {}, &progress);
  }
  CHECK_EQ(progress.touched_bytes.load(), layout.map_bytes);
  PoolProgress cancelled;
  cancelled.cancelled.store(true);
  CHECK_THROWS(Pool(layout, {}, &cancelled), std::system_error);
  CHECK_EQ(cancelled.touched_bytes.load(), uint64_t{0});
}

TEST(the_layout_keeps_table_and_objects_apart) {
  const PoolLayout layout = pool_layout(10 << 20, 100000, 128);
  CHECK(layout.data_offset >= layout.table_bytes);
  CHECK_EQ(layout.data_offset % (2 << 20), uint64_t{0});
  CHECK(layout.map_bytes >= layout.data_offset + (10 << 20));
}

TEST(a_limit_in_the_way_is_named_with_its_remedy) {
  CHECK_EQ(memory_limit_in_the_way(need(1 << 20)), std::string());
  const std::string memory = memory_limit_in_the_way(need(1ull << 50));
  CHECK(memory.find("MiB") != std::string::npos);
  CHECK(memory.find("capacity_bytes") != std::string::npos);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit low = before;
  low.rlim_cur = 1 << 20;
  CHECK_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  CHECK(memory_limit_in_the_way(need(2 << 20)).find("RLIMIT_FSIZE is 1 MiB") != std::string::npos);
  CHECK_THROWS(Pool(pool_layout(2 << 20, 1024, 128), {}), PoolLimitError);
  CHECK_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST_MAIN()
