// What a client's map of a pool costs in page tables, and that bounding it never takes memory from under a reader.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "reserved_huge_pages.hpp"
#include "segment/pool.hpp"
#include "segment/pool_place.hpp"
#include "transports/same_host/client/attached_pool.hpp"

using namespace kvstore;

namespace {

constexpr uint64_t kPage = 4096;

uint64_t page_table_bytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  uint64_t kib = 0;
  while (file >> word)
    if (word == "VmPTE:") file >> kib;
  return kib * 1024;
}

// Since then. A sanitizer's shadow of what is read has tables of its own: there it says nothing, and is 0.
uint64_t growth(uint64_t before) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  before = UINT64_MAX;
#endif
  const uint64_t now = page_table_bytes();
  return now - std::min(before, now);
}

bool is_present(const uint8_t* address) {
  const int fd = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  uint64_t entry = 0;
  const auto at = static_cast<off_t>(reinterpret_cast<uint64_t>(address) / kPage * sizeof(entry));
  CHECK_EQ(::pread(fd, &entry, sizeof(entry), at), static_cast<ssize_t>(sizeof(entry)));
  ::close(fd);
  return (entry >> 63) != 0;
}

uint8_t byte_of(uint64_t page) { return static_cast<uint8_t>(page * 31 % 251 + 1); }

// A pool of which each page says which it is.
struct Segment {
  explicit Segment(uint64_t bytes, HugePages pages) : pool(pool_layout(bytes, 1024, 128), options(pages)) {
    for (uint64_t at = 0; at < pool.map_bytes(); at += kPage) pool.base()[at] = byte_of(at / kPage);
    geometry.map_bytes = pool.map_bytes();
    geometry.slot_count = 1024;
    geometry.slot_bytes = 128;
  }
  static PoolOptions options(HugePages pages) {
    PoolOptions options;
    options.huge_pages = pages;
    return options;
  }
  std::unique_ptr<AttachedPool> attach(const AttachedPoolLimits& limits = {}) {
    const int fd = ::fcntl(pool.read_only_fd(), F_DUPFD_CLOEXEC, 0);
    auto attached = AttachedPool::attach(fd, geometry, limits);
    CHECK(attached != nullptr);
    return attached;
  }
  Pool pool;
  data_codec::PoolGeometry geometry;
};

uint64_t wrong_pages(AttachedPool& attached, uint64_t from_page, uint64_t to_page) {
  uint64_t wrong = 0;
  for (uint64_t page = from_page; page < to_page; ++page) {
    const AttachedPool::Use use = attached.use(page * kPage, kPage);
    wrong += use.data() == nullptr || use.data()[0] != byte_of(page);
  }
  return wrong;
}

}  // namespace

TEST(page_tables_of_small_pages_are_at_most_two_thousandths_of_what_is_mapped_and_at_most_what_is_allowed) {
  Segment segment(128 << 20, HugePages::kOff);
  AttachedPoolLimits limits;
  limits.window_bytes = 4 << 20;
  limits.table_bytes_max = 64 << 10;  // of 32 MiB
  const uint64_t before = page_table_bytes();
  const auto attached = segment.attach(limits);
  const uint64_t pages = segment.pool.map_bytes() / kPage;
  for (int round = 0; round < 3; ++round) CHECK_EQ(wrong_pages(*attached, 0, pages), uint64_t{0});
  CHECK(attached->table_bytes() <= limits.table_bytes_max);
  const uint64_t tables = growth(before);
  std::fprintf(stderr, "page tables: %llu KiB of %llu MiB mapped\n",
               static_cast<unsigned long long>(tables >> 10),
               static_cast<unsigned long long>(segment.pool.map_bytes() >> 20));
  // Beside those of the windows: upper levels, the stack of the thread that populates, windows whose edges share a table.
  CHECK(tables <= limits.table_bytes_max + (48 << 10));
  CHECK(tables * 1000 <= segment.pool.map_bytes() * 2);
}

TEST(readers_that_come_and_go_everywhere_read_what_is_there_while_windows_are_given_back) {
  Segment segment(64 << 20, HugePages::kOff);
  AttachedPoolLimits limits;
  limits.window_bytes = 2 << 20;
  limits.table_bytes_max = 4 * (4 << 10);
  const auto attached = segment.attach(limits);
  const uint64_t pages = segment.pool.map_bytes() / kPage;
  const unsigned seed = std::random_device()();
  std::fprintf(stderr, "seed %u\n", seed);
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < 4; ++i)
    readers.emplace_back([&, i] {
      std::mt19937 random(seed + i);
      for (int n = 0; n < 5000; ++n) {
        const uint64_t page = random() % pages;
        const uint64_t count = 1 + random() % std::min<uint64_t>(pages - page, 1024);
        const AttachedPool::Use use = attached->use(page * kPage, count * kPage);
        if (use.data() == nullptr) {
          ++wrong;
          continue;
        }
        for (const uint64_t at : {uint64_t{0}, count / 2, count - 1})
          wrong += use.data()[at * kPage] != byte_of(page + at);
      }
    });
  for (std::thread& reader : readers) reader.join();
  CHECK_EQ(wrong.load(), uint64_t{0});
  CHECK_EQ(wrong_pages(*attached, 0, pages), uint64_t{0});
  CHECK(attached->table_bytes() <= limits.table_bytes_max);
}

TEST(a_window_that_is_being_used_is_kept_and_one_that_nobody_uses_is_given_back) {
  Segment segment(32 << 20, HugePages::kOff);
  AttachedPoolLimits limits;
  limits.window_bytes = 2 << 20;
  limits.table_bytes_max = 2 * (4 << 10);
  const auto attached = segment.attach(limits);
  const uint8_t* left = nullptr;
  {
    const AttachedPool::Use use = attached->use(4 << 20, kPage);
    left = use.data();
    CHECK_EQ(int{left[0]}, int{byte_of((4 << 20) / kPage)});
  }
  const AttachedPool::Use held = attached->use(8 << 20, kPage);
  CHECK_EQ(int{held.data()[0]}, int{byte_of((8 << 20) / kPage)});
  CHECK_EQ(wrong_pages(*attached, (10 << 20) / kPage, segment.pool.map_bytes() / kPage), uint64_t{0});
  CHECK(is_present(held.data()));
  CHECK(!is_present(left));
}

TEST(more_windows_in_use_than_are_allowed_are_all_kept) {
  Segment segment(16 << 20, HugePages::kOff);
  AttachedPoolLimits limits;
  limits.window_bytes = 2 << 20;
  limits.table_bytes_max = 4 << 10;
  const auto attached = segment.attach(limits);
  const AttachedPool::Use all = attached->use(0, 16 << 20);
  uint64_t wrong = 0;
  for (uint64_t page = 0; page < (16 << 20) / kPage; ++page)
    wrong += all.data()[page * kPage] != byte_of(page);
  CHECK_EQ(wrong, uint64_t{0});
  CHECK(is_present(all.data()));
}

TEST(what_does_not_lie_in_the_map_is_not_to_be_had) {
  Segment segment(4 << 20, HugePages::kOff);
  const auto attached = segment.attach();
  const uint64_t end = segment.pool.map_bytes();
  CHECK(attached->use(0, end).data() != nullptr);
  CHECK(attached->use(end, 0).data() == nullptr || end % AttachedPoolLimits{}.window_bytes != 0);
  CHECK(attached->use(end - 1, 1).data() != nullptr);
  CHECK(attached->use(end - 1, 2).data() == nullptr);
  CHECK(attached->use(end + 1, 0).data() == nullptr);
  CHECK(attached->use(UINT64_MAX, 1).data() == nullptr);
  CHECK(attached->use(1, UINT64_MAX).data() == nullptr);
  CHECK_EQ(attached->generation(1024) % 2, uint64_t{1});
}

TEST(a_file_that_was_made_shorter_is_whole_no_more) {
  const PoolPlace place;
  const std::string path = place.file("pool");
  PoolOptions options = Segment::options(HugePages::kOff);
  options.path = path;
  const Pool pool(pool_layout(4u << 20, 1024, 128), options);
  data_codec::PoolGeometry geometry;
  geometry.map_bytes = pool.map_bytes();
  const auto attached =
      AttachedPool::attach(::fcntl(pool.read_only_fd(), F_DUPFD_CLOEXEC, 0), geometry, AttachedPoolLimits{});
  CHECK(attached != nullptr && attached->is_whole());
  CHECK_EQ(::truncate(path.c_str(), static_cast<off_t>(pool.map_bytes() - 4096)), 0);
  CHECK(!attached->is_whole());
  CHECK_EQ(::truncate(path.c_str(), static_cast<off_t>(pool.map_bytes())), 0);
  CHECK(attached->is_whole());  // with zeros, which are no page
}

TEST(a_pool_of_huge_pages_is_mapped_by_them_and_costs_next_to_no_tables) {
  const testing::ReservedHugePages reserved(40);
  const bool has_reserved = reserved.free() >= 34;
  for (const HugePages pages : {HugePages::kTransparent, HugePages::k2MiB}) {
    if (pages == HugePages::k2MiB && !has_reserved) {
      CHECK_THROWS(Segment(64 << 20, pages), PoolLimitError);
      continue;
    }
    const uint64_t own_before = page_table_bytes();
    Segment segment(64 << 20, pages);
    const uint64_t own = growth(own_before);
    const uint64_t before = page_table_bytes();
    const auto attached = segment.attach();
    CHECK_EQ(wrong_pages(*attached, 0, segment.pool.map_bytes() / kPage), uint64_t{0});
    // As the segment itself has got them; the thread that populates has a stack.
    CHECK(growth(before) <= own + (32 << 10));
    if (pages == HugePages::k2MiB) CHECK(growth(before) <= 32 << 10);
  }
}

TEST_MAIN()
