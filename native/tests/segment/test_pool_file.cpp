// Pools in files that outlive the process: on tmpfs, and on hugetlbfs where the kernel sets pages aside.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "check.hpp"
#include "reserved_huge_pages.hpp"
#include "segment/pool.hpp"

using namespace kvstore;

namespace {

const PoolLayout kLayout = pool_layout(4 << 20, 1024, 128);

// A name on a tmpfs, nothing there yet; gone with the object.
struct Name {
  std::string path = "/dev/shm/kvstore-test-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
  ~Name() { ::unlink(path.c_str()); }
  static inline int next = 0;
};

PoolOptions at(const std::string& path) {
  PoolOptions options;
  options.path = path;
  return options;
}

bool exists(const std::string& path) {
  struct stat file{};
  return ::lstat(path.c_str(), &file) == 0;
}

std::string why_not(const PoolLayout& layout, const PoolOptions& options) {
  try {
    const Pool pool(layout, options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "not in it: %s\n  %s\n", part.c_str(), text.c_str());
  return false;
}

// In a child with mounts of its own, so that what is mounted ends with it. 0 when every check held.
int in_own_mounts(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool root = ::geteuid() == 0;
    const uid_t uid = ::geteuid();
    if (::unshare(root ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) ::_exit(77);
    if (!root) {
      std::ofstream("/proc/self/setgroups") << "deny";
      std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
    }
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    const int before = testing::failures();
    try {
      body();
    } catch (const std::exception& error) {
      testing::fail("in own mounts", 0, error.what());
    }
    ::_exit(testing::failures() - before == 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

}  // namespace

TEST(a_pool_file_outlives_its_pool_with_every_byte) {
  const Name name;
  {
    const Pool pool(kLayout, at(name.path));
    CHECK(!pool.adopted());
    for (uint64_t i = 0; i < pool.map_bytes(); i += 997) {
      CHECK_EQ(int{pool.base()[i]}, 0);
      pool.base()[i] = static_cast<uint8_t>(i % 251 + 1);
    }
  }
  const Pool again(kLayout, at(name.path));
  CHECK(again.adopted());
  int wrong = 0;
  for (uint64_t i = 0; i < again.map_bytes(); i += 997) wrong += again.base()[i] != i % 251 + 1;
  CHECK_EQ(wrong, 0);
}

TEST(a_pool_file_is_for_its_owner_alone_and_clients_get_it_read_only) {
  const Name name;
  const mode_t before = ::umask(0);
  const Pool pool(kLayout, at(name.path));
  ::umask(before);
  struct stat file{};
  CHECK_EQ(::stat(name.path.c_str(), &file), 0);
  CHECK_EQ(file.st_mode & 07777u, 0600u);
  const int fd = pool.read_only_fd();
  CHECK_EQ(::fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK(::pwrite(fd, "x", 1, 0) < 0);
  CHECK(::ftruncate(fd, 4096) != 0);
  void* map = ::mmap(nullptr, pool.map_bytes(), PROT_READ, MAP_SHARED, fd, 0);
  CHECK(map != MAP_FAILED);
  pool.base()[7] = 42;
  CHECK_EQ(int{static_cast<const uint8_t*>(map)[7]}, 42);
  CHECK(::mprotect(map, 4096, PROT_READ | PROT_WRITE) != 0);
  ::munmap(map, pool.map_bytes());
}

TEST(another_user_cannot_open_the_descriptor_anew_for_writing) {
  if (::geteuid() != 0) return;  // a user of one's own can, as before: see the decision on pools' memory
  const Name name;
  const Pool pool(kLayout, at(name.path));
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const std::string self = "/proc/self/fd/" + std::to_string(pool.read_only_fd());
    ::_exit(::open(self.c_str(), O_RDWR) < 0 && ::truncate(name.path.c_str(), 0) != 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

TEST(two_on_one_pool_file_are_refused_and_the_holder_is_named) {
  const Name name;
  const Pool pool(kLayout, at(name.path));
  pool.base()[100] = 9;
  const std::string why = why_not(kLayout, at(name.path));
  CHECK(says(why, "is in use by another process (pid " + std::to_string(::getpid()) + ")"));
  CHECK(says(why, name.path));
  CHECK_EQ(int{pool.base()[100]}, 9);
  CHECK(exists(name.path));
}

TEST(a_pool_that_was_let_go_may_be_opened_anew_while_its_memory_is_still_read) {
  const Name name;
  const Pool first(kLayout, at(name.path));
  first.base()[9] = 1;
  first.let_go();
  const Pool second(kLayout, at(name.path));
  CHECK(second.adopted());
  second.base()[9] = 2;
  CHECK_EQ(int{first.base()[9]}, 2);
  CHECK(says(why_not(kLayout, at(name.path)), "is in use by another process"));
}

TEST(a_pool_file_of_another_size_is_refused_untouched) {
  const Name name;
  {
    const Pool pool(kLayout, at(name.path));
    pool.base()[3] = 77;
  }
  const PoolLayout larger = pool_layout(8 << 20, 1024, 128);
  const std::string why = why_not(larger, at(name.path));
  CHECK(says(why, "has " + std::to_string(kLayout.map_bytes) + " bytes and the settings make it " +
                      std::to_string(larger.map_bytes)));
  CHECK(says(why, "set capacity as it was, or remove the file"));
  CHECK_THROWS(Pool(larger, at(name.path)), PoolRefusedError);
  const Pool again(kLayout, at(name.path));
  CHECK(again.adopted());
  CHECK_EQ(int{again.base()[3]}, 77);
}

TEST(what_an_earlier_process_left_is_examined_before_it_is_touched_and_before_its_size_counts) {
  const Name name;
  PoolOptions options = at(name.path);
  int asked = 0;
  options.examine = [&](const uint8_t* head, uint64_t size_bytes) {
    ++asked;
    CHECK_EQ(size_bytes, kLayout.map_bytes);
    if (head[0] == 200) throw PoolRefusedError("of version 200");
  };
  {
    const Pool pool(kLayout, options);
    CHECK_EQ(asked, 0);
    pool.base()[0] = 200;
  }
  CHECK_EQ(why_not(kLayout, options), std::string("of version 200"));
  CHECK_EQ(why_not(pool_layout(8 << 20, 1024, 128), options), std::string("of version 200"));
  CHECK_EQ(asked, 2);
  CHECK(exists(name.path));
}

TEST(links_directories_and_what_others_may_use_are_refused) {
  const Name file, link;
  {
    const Pool pool(kLayout, at(file.path));
  }
  CHECK_EQ(::symlink(file.path.c_str(), link.path.c_str()), 0);
  CHECK(says(why_not(kLayout, at(link.path)), "is a symbolic link"));
  ::unlink(link.path.c_str());
  CHECK_EQ(::link(file.path.c_str(), link.path.c_str()), 0);
  CHECK(says(why_not(kLayout, at(file.path)), "second name"));
  ::unlink(link.path.c_str());
  CHECK_EQ(::chmod(file.path.c_str(), 0660), 0);
  CHECK(says(why_not(kLayout, at(file.path)), "may be used by others (mode 0660, not 0600)"));
  CHECK_EQ(::chmod(file.path.c_str(), 0604), 0);
  CHECK(says(why_not(kLayout, at(file.path)), "mode 0604"));
  CHECK_EQ(::chmod(file.path.c_str(), 0600), 0);
  if (::geteuid() == 0) {
    CHECK_EQ(::chown(file.path.c_str(), 65534, 65534), 0);
    CHECK(says(why_not(kLayout, at(file.path)), "belongs to user 65534, and this is user 0"));
  }
  CHECK(says(why_not(kLayout, at("/dev/shm")), "that is a directory"));
  CHECK(says(why_not(kLayout, at("/dev/shm/no-such-directory/pool")), "its directory does not exist"));
  const Name fifo;
  CHECK_EQ(::mkfifo(fifo.path.c_str(), 0600), 0);
  CHECK(says(why_not(kLayout, at(fifo.path)), "is not a regular file"));
  CHECK(exists(fifo.path));
}

TEST(a_disk_is_no_place_for_a_pool_and_nothing_stays_there) {
  const std::string path = "/proc/self/exe";
  char self[4096] = {};
  CHECK(::readlink(path.c_str(), self, sizeof(self) - 1) > 0);
  const std::string beside = std::string(self) + ".pool";
  const std::string why = why_not(kLayout, at(beside));
  CHECK(says(why, "neither on tmpfs nor on hugetlbfs"));
  CHECK(says(why, "choose a path in /dev/shm"));
  CHECK(!exists(beside));
}

TEST(a_new_file_whose_making_was_called_off_is_gone_and_an_adopted_one_stays) {
  const Name name;
  PoolProgress cancelled;
  cancelled.cancelled.store(true);
  CHECK_THROWS(Pool(kLayout, at(name.path), &cancelled), std::system_error);
  CHECK(!exists(name.path));
  {
    const Pool pool(kLayout, at(name.path));
    pool.base()[1] = 5;
  }
  CHECK_THROWS(Pool(kLayout, at(name.path), &cancelled), std::system_error);
  const Pool again(kLayout, at(name.path));
  CHECK_EQ(int{again.base()[1]}, 5);
}

TEST(a_file_that_got_its_size_and_nothing_else_is_adopted_with_zeros_and_one_of_no_size_is_new) {
  const Name name;
  ::close(::open(name.path.c_str(), O_CREAT | O_RDWR, 0600));
  {
    const Pool pool(kLayout, at(name.path));
    CHECK(!pool.adopted());
  }
  ::unlink(name.path.c_str());
  const int fd = ::open(name.path.c_str(), O_CREAT | O_RDWR, 0600);
  CHECK_EQ(::ftruncate(fd, static_cast<off_t>(kLayout.map_bytes)), 0);
  ::close(fd);
  PoolProgress progress;
  const Pool pool(kLayout, at(name.path), &progress);
  CHECK(pool.adopted());
  CHECK_EQ(progress.touched_bytes.load(), kLayout.map_bytes);
  struct stat file{};
  CHECK_EQ(::stat(name.path.c_str(), &file), 0);
  CHECK(static_cast<uint64_t>(file.st_blocks) * 512 >= kLayout.map_bytes);
}

TEST(a_memory_file_system_that_is_too_small_is_named_with_its_room) {
  const int failed = in_own_mounts([] {
    CHECK_EQ(::mount("none", "/mnt", "tmpfs", 0, "size=3M"), 0);
    const std::string why = why_not(kLayout, at("/mnt/pool"));
    CHECK(says(why, "the file system has 3 MiB free of 3 MiB and 6 MiB are needed"));
    CHECK(says(why, "remount,size="));
    CHECK(!exists("/mnt/pool"));
    CHECK_THROWS(Pool(kLayout, at("/mnt/pool")), PoolPlaceError);
    // What a pool has already it does not need again.
    CHECK_EQ(::mount("none", "/mnt", "tmpfs", 0, "size=7M"), 0);
    {
      const Pool pool(kLayout, at("/mnt/pool"));
    }
    const Pool again(kLayout, at("/mnt/pool"));
    CHECK(again.adopted());
  });
  CHECK_EQ(failed, 0);
}

TEST(huge_pages_that_were_set_aside_are_used_or_their_lack_is_told_with_the_command_that_makes_them) {
  PoolOptions huge;
  huge.huge_pages = HugePages::k2MiB;
  const testing::ReservedHugePages reserved(4);
  const uint64_t free = reserved.free();
  if (free >= 3) {
    {
      const Pool pool(kLayout, huge);
      CHECK_EQ(pool.reserved_page_bytes(), uint64_t{2} << 20);
      pool.base()[kLayout.map_bytes - 1] = 1;
      CHECK(reserved.free() + 3 <= free);
      const int again =
          ::open(("/proc/self/fd/" + std::to_string(pool.read_only_fd())).c_str(), O_RDWR | O_CLOEXEC);
      CHECK(::mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
      ::close(again);
    }
    const int failed = in_own_mounts([&] {
      CHECK_EQ(::mount("none", "/mnt", "hugetlbfs", 0, "pagesize=2M"), 0);
      PoolOptions file = huge;
      file.path = "/mnt/pool";
      {
        const Pool pool(kLayout, file);
        CHECK_EQ(pool.reserved_page_bytes(), uint64_t{2} << 20);
        pool.base()[4096] = 17;
      }
      const Pool again(kLayout, file);
      CHECK(again.adopted());
      CHECK_EQ(int{again.base()[4096]}, 17);
      file.huge_pages = HugePages::k1GiB;
      file.path = "/mnt/other";
      CHECK(says(why_not(kLayout, file),
                 "asks for pages of 1024 MiB and it is on hugetlbfs with pages of 2 MiB"));
    });
    CHECK_EQ(failed, 0);
  }
  const std::string why = why_not(pool_layout(1ull << 40, 1024, 128), huge);
  CHECK(says(why, "huge pages of 2 MiB are needed and"));
  CHECK(says(why, "/hugepages-2048kB/nr_hugepages` as root"));
  const Name name;
  huge.path = name.path;
  CHECK(says(why_not(kLayout, huge),
             "asks for pages of 2 MiB and it is on tmpfs; mount hugetlbfs with pagesize=2M"));
  CHECK(!exists(name.path));
}

TEST(a_numa_node_that_is_there_is_bound_to_and_one_that_is_not_is_named) {
  PoolOptions options;
  options.numa_nodes = {0};
  const std::string here = why_not(kLayout, options);
  // Where nodes are no matter of this process's (a container without CAP_SYS_NICE), it is told so.
  CHECK(here.empty() || says(here, "CAP_SYS_NICE") || says(here, "has_memory"));
  options.numa_nodes = {0, 777};
  const std::string why = why_not(kLayout, options);
  CHECK(says(why, "there is no memory on NUMA node 777, only on 0") || says(why, "has_memory"));
  CHECK(says(why, "numa_nodes"));
}

TEST(transparent_huge_pages_keep_bytes_and_page_tables_small) {
  const auto page_table_kib = [] {
    std::ifstream file("/proc/self/status");
    std::string word;
    uint64_t value = 0;
    while (file >> word)
      if (word == "VmPTE:") file >> value;
    return value;
  };
  const PoolLayout large = pool_layout(128 << 20, 1024, 128);
  PoolOptions off;
  off.huge_pages = HugePages::kOff;
  const uint64_t start = page_table_kib();
  uint64_t small_pages = 0, huge_pages = 0;
  {
    const Pool pool(large, off);
    small_pages = page_table_kib() - start;
  }
  const uint64_t between = page_table_kib();
  {
    const Pool pool(large, {});
    huge_pages = page_table_kib() - std::min(between, page_table_kib());
    pool.base()[large.map_bytes - 1] = 3;
  }
  std::fprintf(stderr, "page tables of %llu MiB: %llu KiB small, %llu KiB huge\n",
               static_cast<unsigned long long>(large.map_bytes >> 20),
               static_cast<unsigned long long>(small_pages), static_cast<unsigned long long>(huge_pages));
  // Whether there are huge pages to be had is the machine's matter; never is it more.
  CHECK(huge_pages <= small_pages + 16);
}

TEST_MAIN()
