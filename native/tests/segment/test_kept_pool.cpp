#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "check.hpp"
#include "segment/kept_pool.hpp"
#include "segment/pool_place.hpp"
#include "segment/slot_table.hpp"

using namespace kvstore;

namespace {

constexpr uint64_t kCapacity = 8u << 20;
const PoolId kFirst = {1}, kSecond = {2};
const SegmentId kSegment = {3};

KeptPoolOptions options(const std::string& path, const PoolId& new_pool_id = kSecond) {
  KeptPoolOptions o;
  o.pool.path = path;
  o.new_pool_id = new_pool_id;
  o.segment_id = kSegment;
  o.capacity_bytes = kCapacity;
  return o;
}

KeptPool opened(const KeptPoolOptions& o) {
  return KeptPool(pool_layout(o.capacity_bytes, 1024, sizeof(SlotHeader)), o, nullptr);
}

// A pool as an earlier process leaves it, with `text` in its data and one journal entry.
void leave_a_pool(const std::string& path, const char* text = "pages") {
  KeptPool pool = opened(options(path, kFirst));
  std::strcpy(reinterpret_cast<char*>(pool.memory().base()) + (4u << 20), text);
  const SlotTable slots(pool.memory().base(), 1024 * sizeof(SlotHeader), 1, false);
  const JournalEntry entry{{5, 6}, {7}, 8, JournalOp::kAdd};
  pool.ring()->append(1, &entry, 1);
  pool.formatted();
}

std::string text_in(KeptPool& pool) { return reinterpret_cast<char*>(pool.memory().base()) + (4u << 20); }

uint64_t inode(const std::string& path) {
  struct stat file{};
  return ::stat(path.c_str(), &file) == 0 ? static_cast<uint64_t>(file.st_ino) : 0;
}

bool refused(const KeptPoolOptions& o, const char* why) {
  try {
    opened(o);
  } catch (const PoolRefusedError& e) {
    return std::strstr(e.what(), why) != nullptr && std::strstr(e.what(), o.pool.path.c_str()) != nullptr;
  }
  return false;
}

}  // namespace

TEST(a_pool_is_warm_for_the_next_process_with_its_id_its_bytes_and_its_journal) {
  PoolPlace place;
  {
    KeptPool first = opened(options(place.file("pool"), kFirst));
    CHECK(!first.warm() && first.fresh_reason() == "there was none" && first.pool_id() == kFirst);
    CHECK(first.journal().intact && first.journal().last_seq() == 0);
  }
  leave_a_pool(place.file("pool2"));
  KeptPool again = opened(options(place.file("pool2")));
  CHECK(again.warm() && again.fresh_reason().empty() && again.pool_id() == kFirst);
  CHECK_EQ(text_in(again), std::string("pages"));
  CHECK_EQ(again.journal().last_seq(), uint64_t{1});
  CHECK(again.cluster_id() == ClusterId{});
  again.set_cluster_id({9});
  CHECK(again.cluster_id() == ClusterId{9});
}

TEST(a_pool_that_was_not_finished_is_replaced) {
  PoolPlace place;
  {
    opened(options(place.file("pool"), kFirst));
  }
  const uint64_t was = inode(place.file("pool"));
  KeptPool again = opened(options(place.file("pool")));
  CHECK(!again.warm() && again.pool_id() == kSecond);
  CHECK_EQ(again.fresh_reason(), std::string("the process that made it died before it was whole"));
  CHECK(inode(place.file("pool")) != was);
}

TEST(who_has_a_replaced_pool_mapped_reads_zeros_and_never_the_new_one) {
  PoolPlace place;
  leave_a_pool(place.file("pool"));
  const int fd = ::open(place.file("pool").c_str(), O_RDONLY | O_CLOEXEC);
  auto* const seen = static_cast<const char*>(::mmap(nullptr, kCapacity, PROT_READ, MAP_SHARED, fd, 0));
  CHECK_EQ(std::string(seen + (4u << 20)), std::string("pages"));
  KeptPoolOptions o = options(place.file("pool"));
  o.empty = true;
  KeptPool again = opened(o);
  CHECK(!again.warm() && again.fresh_reason() == "it was to be emptied");
  std::strcpy(reinterpret_cast<char*>(again.memory().base()) + (4u << 20), "new");
  CHECK_EQ(std::string(seen + (4u << 20)), std::string());
  CHECK_EQ(seen[0], '\0');
  ::munmap(const_cast<char*>(seen), kCapacity);
  ::close(fd);
}

TEST(a_copied_pool_is_empty_and_the_one_it_was_copied_from_is_not) {
  PoolPlace place;
  leave_a_pool(place.file("pool"));
  {
    std::ifstream from(place.file("pool"), std::ios::binary);
    std::ofstream to(place.file("copy"), std::ios::binary);
    to << from.rdbuf();
  }
  ::chmod(place.file("copy").c_str(), 0600);
  KeptPool copy = opened(options(place.file("copy")));
  CHECK(!copy.warm() && copy.fresh_reason() == "it is a copy of another pool file");
  CHECK(opened(options(place.file("pool"))).warm());
}

TEST(a_pool_whose_journal_is_damaged_is_replaced) {
  PoolPlace place;
  leave_a_pool(place.file("pool"));
  {
    KeptPool pool = opened(options(place.file("pool")));
    uint8_t* const ring = pool.memory().base() + Superblock(pool.memory().base()).shape().journal_offset;
    ring[0] ^= 1;
    ring[64] ^= 1;
  }
  KeptPool again = opened(options(place.file("pool")));
  CHECK(!again.warm() && again.pool_id() == kSecond &&
        again.fresh_reason().find("journal") != std::string::npos);
}

TEST(a_pool_whose_magic_went_bad_or_that_somebody_made_shorter_is_replaced) {
  PoolPlace place;
  const std::string path = place.file("pool");
  leave_a_pool(path);
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.put('k');
  }
  {
    KeptPool again = opened(options(path));
    CHECK(!again.warm() && again.fresh_reason() == "its first page is damaged");
  }
  CHECK_EQ(::unlink(path.c_str()), 0);
  leave_a_pool(path);
  struct stat file{};
  CHECK_EQ(::stat(path.c_str(), &file), 0);
  CHECK_EQ(::truncate(path.c_str(), file.st_size / 2), 0);
  KeptPool again = opened(options(path));
  CHECK(!again.warm() && again.pool_id() == kSecond);
  CHECK_EQ(again.fresh_reason(), "somebody has made it shorter: it has " + std::to_string(file.st_size / 2) +
                                     " bytes of " + std::to_string(file.st_size));
}

TEST(a_pool_of_another_segment_or_size_or_release_is_refused_and_stays_as_it_is) {
  PoolPlace place;
  const std::string path = place.file("pool");
  leave_a_pool(path);
  KeptPoolOptions o = options(path);
  o.segment_id = {4};
  CHECK(refused(o, "another segment"));
  o = options(path);
  o.capacity_bytes *= 2;
  CHECK(refused(o, "set capacity as it was"));
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(8);
    file.put(static_cast<char>(Superblock::kFormat + 1));
    file.seekp(16);
    file.put(static_cast<char>(kFirst[0] ^ 1));  // whatever it is there
  }
  CHECK(refused(options(path), "a later release"));
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(8);
    file.put(static_cast<char>(Superblock::kFormat));
    file.seekp(16);
    file.put(static_cast<char>(kFirst[0]));
  }
  KeptPool again = opened(options(path));
  CHECK(again.warm());
  CHECK_EQ(text_in(again), std::string("pages"));
  CHECK(refused(options(path), "in use by another process"));
  o = options(path);
  o.empty = true;
  CHECK(refused(o, "in use by another process"));
}

TEST(what_is_no_pool_is_never_removed_even_to_empty_it) {
  PoolPlace place;
  const std::string path = place.file("notes");
  {
    std::ofstream(path) << std::string(10000, 'x');
  }
  ::chmod(path.c_str(), 0600);
  KeptPoolOptions o = options(path);
  CHECK(refused(o, "not a pool of kvstore"));
  o.empty = true;
  CHECK(refused(o, "not a pool of kvstore"));
  CHECK_EQ(inode(path) != 0, true);
}

TEST(a_mistyped_path_that_is_to_be_emptied_costs_nobody_a_file) {
  PoolPlace place;
  char on_disk[] = "/var/tmp/kvstore-test-XXXXXX";
  const int fd = ::mkstemp(on_disk);
  CHECK(fd >= 0 && ::ftruncate(fd, 1 << 20) == 0);  // it begins with zeros, as the image of a disk may
  ::close(fd);
  KeptPoolOptions o = options(on_disk);
  o.empty = true;
  struct statfs system{};
  CHECK_EQ(::statfs(on_disk, &system), 0);
  constexpr uint64_t kTmpfs = 0x01021994;
  if (static_cast<uint64_t>(system.f_type) != kTmpfs) {
    CHECK(refused(o, "is neither on tmpfs nor on hugetlbfs"));
    CHECK(inode(on_disk) != 0);
  }
  ::unlink(on_disk);

  const std::string note = place.file("note"), image = place.file("image"), open_one = place.file("open");
  std::ofstream(note) << "a few words";
  ::chmod(note.c_str(), 0600);
  std::ofstream(image) << std::string(8192, '\0') << "data";
  ::chmod(image.c_str(), 0600);
  std::ofstream(open_one) << std::string(8192, '\0');
  ::chmod(open_one.c_str(), 0644);
  for (const std::string& path : {note, image, open_one}) {
    o = options(path);
    o.empty = true;
    const uint64_t before = inode(path);
    CHECK(refused(o, "is not a pool of kvstore"));
    CHECK(before != 0 && inode(path) == before);
  }
}

TEST(a_pool_of_another_user_or_with_a_second_name_is_not_emptied) {
  PoolPlace place;
  const std::string path = place.file("pool"), second = place.file("second");
  leave_a_pool(path);
  KeptPoolOptions o = options(path);
  o.empty = true;
  CHECK_EQ(::link(path.c_str(), second.c_str()), 0);
  CHECK(refused(o, "second name"));
  ::unlink(second.c_str());
  if (::geteuid() == 0) {
    CHECK_EQ(::chown(path.c_str(), 12345, 12345), 0);
    CHECK(refused(o, "belongs to another user"));
    CHECK_EQ(::chown(path.c_str(), 0, 0), 0);
  }
  CHECK(opened(options(path)).warm());
}

TEST(memory_that_ends_with_the_process_has_no_journal_ring) {
  KeptPool pool = opened(options(""));
  CHECK(!pool.warm() && pool.ring() == nullptr && pool.pool_id() == kSecond);
  pool.formatted();
}

TEST_MAIN()
