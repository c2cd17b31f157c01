// The disk tier by itself: what is written and read back, what a later process finds, and what becomes of it on a disk
// that fails, hangs, or lies.
#include <random>

#include "check.hpp"
#include "segment/disk/disk_fixture.hpp"

using namespace kvstore;
using namespace kvstore::testing;

namespace {

std::string name_of(int i) { return "page-" + std::to_string(i); }
uint32_t length_of(int i) { return static_cast<uint32_t>(1 + (i * 7919) % 60'000); }

std::shared_ptr<DiskMedium> new_medium() { return std::make_shared<DiskMedium>(); }

}  // namespace

TEST(pages_of_any_size_are_read_back) {
  TierRig rig(new_medium());
  const uint32_t lengths[] = {1, 127, 3967, 3968, 4096, 65'536, 200'000};
  for (const uint32_t length : lengths) {
    const std::string name = "of-" + std::to_string(length);
    CHECK(rig.write(name, length));
    CHECK(rig.get(name, length) == Got::kRight);
  }
  CHECK(rig.get("never written", 10) == Got::kMiss);
  CHECK_EQ(rig.stat("disk_hits"), std::size(lengths));
}

TEST(a_page_that_no_region_has_room_for_is_left_out) {
  TierRig rig(new_medium());
  rig.memory.put("large", 300'000);
  rig.note("large");
  CHECK(comes([&] { return rig.stat("disk_too_large") == 1; }));
  CHECK(rig.write("small", 1000));
  CHECK(rig.get("large", 300'000) == Got::kMiss);
}

TEST(what_was_seen_once_is_not_written) {
  TierRig rig(new_medium(), 2);
  for (int i = 0; i < 50; ++i) {
    rig.memory.put(name_of(i), 5000);
    rig.note(name_of(i));
  }
  rig.note(name_of(7));
  CHECK(comes([&] { return rig.tier.lengths({disk_page(name_of(7))})[0] == 5000; }));
  CHECK_EQ(rig.stat("disk_written_pages"), 1u);
  rig.tier.note({disk_page(name_of(9))}, true);  // wanted
  CHECK(comes([&] { return rig.tier.lengths({disk_page(name_of(9))})[0] == 5000; }));
}

TEST(a_page_is_written_once) {
  TierRig rig(new_medium());
  CHECK(rig.write("page", 5000));
  for (int i = 0; i < 20; ++i) rig.note("page");
  CHECK(rig.write("another", 5000));
  CHECK_EQ(rig.stat("disk_written_pages"), 2u);
}

TEST(a_later_process_finds_everything) {
  const auto medium = new_medium();
  {
    TierRig rig(medium);
    for (int i = 0; i < 60; ++i) CHECK(rig.write(name_of(i), length_of(i)));
  }
  TierRig rig(medium);
  CHECK_EQ(rig.tier.recovered_pages(), 60u);
  for (int i = 0; i < 60; ++i) CHECK(rig.get(name_of(i), length_of(i)) == Got::kRight);
  CHECK_EQ(rig.tier.namespaces().size(), 1u);
  CHECK(rig.write("new", 4000));  // into a region that was free
  CHECK(rig.get("new", 4000) == Got::kRight);
}

TEST(a_process_that_was_killed_has_left_what_it_had_written) {
  const auto killed = new_medium();
  {
    TierRig rig(new_medium());
    for (int i = 0; i < 60; ++i) CHECK(rig.write(name_of(i), length_of(i)));
    const std::lock_guard<std::mutex> lock(rig.medium->mutex);
    killed->bytes = rig.medium->bytes;  // the last region has no table of contents yet
  }
  TierRig rig(killed);
  CHECK_EQ(rig.tier.recovered_pages(), 60u);
  for (int i = 0; i < 60; ++i) CHECK(rig.get(name_of(i), length_of(i)) == Got::kRight);
}

TEST(a_file_of_another_segment_or_size_is_begun_anew) {
  const auto medium = new_medium();
  {
    TierRig rig(medium);
    CHECK(rig.write("page", 5000));
  }
  PagesInMemory memory;
  DiskTierOptions other = TierRig::options(medium, 1, 60'000);
  other.capacity_bytes = 2 * kDiskBytes;
  CHECK_EQ(DiskTier(other, memory).recovered_pages(), 0u);
  other.capacity_bytes = kDiskBytes;
  {
    TierRig rig(medium);  // the superblock is another's now
    CHECK_EQ(rig.tier.recovered_pages(), 0u);
    CHECK(rig.write("page", 5000));
  }
  other.segment_id = {9};
  CHECK_EQ(DiskTier(other, memory).recovered_pages(), 0u);
}

TEST(an_empty_start_forgets) {
  const auto medium = new_medium();
  {
    TierRig rig(medium);
    CHECK(rig.write("page", 5000));
  }
  PagesInMemory memory;
  DiskTierOptions o = TierRig::options(medium, 1, 60'000);
  o.empty = true;
  CHECK_EQ(DiskTier(o, memory).recovered_pages(), 0u);
}

TEST(the_oldest_go_when_it_is_full_and_that_is_told) {
  TierRig rig(new_medium());
  constexpr int kPages = 300;  // of 60 KB: four times what fits
  for (int i = 0; i < kPages; ++i) CHECK(rig.write(name_of(i), 60'000));
  int there = 0;
  const auto gone = rig.memory.gone();
  for (int i = 0; i < kPages; ++i) {
    const Got got = rig.get(name_of(i), 60'000);
    CHECK(got != Got::kWrong);
    there += got == Got::kRight;
    CHECK_EQ(gone.count(disk_page(name_of(i)).fp.lo), got == Got::kRight ? 0u : 1u);
  }
  CHECK(there >= 40);
  CHECK(rig.get(name_of(kPages - 1), 60'000) == Got::kRight);
  CHECK(rig.get(name_of(0), 60'000) == Got::kMiss);
}

TEST(what_is_read_or_pinned_stays_longer) {
  TierRig rig(new_medium());
  CHECK(rig.write("read", 200'000));
  CHECK(rig.write("pinned", 200'000));
  CHECK(rig.write("neither", 200'000));
  CHECK(rig.tier.pin(disk_page("pinned").fp, UINT64_MAX));
  for (int i = 0; i < 20; ++i) {
    CHECK(rig.write(name_of(i), 200'000));
    CHECK(rig.get("read", 200'000) == Got::kRight);
  }
  CHECK(rig.get("pinned", 200'000) == Got::kRight);
  CHECK(rig.get("neither", 200'000) == Got::kMiss);
}

TEST(pins_do_not_keep_everything) {
  TierRig rig(new_medium());
  for (int i = 0; i < 60; ++i) {
    CHECK(rig.write(name_of(i), 200'000));
    CHECK(rig.tier.pin(disk_page(name_of(i)).fp, UINT64_MAX));
  }
}

TEST(flipped_bits_are_a_miss_and_told) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto medium = new_medium();
  std::vector<uint8_t> written;
  {
    TierRig rig(medium);
    for (int i = 0; i < 40; ++i) CHECK(rig.write(name_of(i), length_of(i)));
  }
  written = medium->bytes;
  for (int round = 0; round < 60; ++round) {
    medium->bytes = written;
    if (round % 3 == 0) {  // while it runs
      TierRig rig(medium);
      const size_t before = rig.stat("disk_pages");
      for (int n = 0; n < 400; ++n) medium->bytes[random() % written.size()] ^= 1u << random() % 8;
      size_t right = 0;
      for (int i = 0; i < 40; ++i) {
        const Got got = rig.get(name_of(i), length_of(i));
        CHECK(got != Got::kWrong);
        right += got == Got::kRight;
      }
      CHECK_EQ(rig.stat("disk_corrupt_pages"), before - right);
      CHECK_EQ(rig.memory.gone().size(), before - right);
    } else {  // before it starts
      for (int n = 0; n < 400; ++n) medium->bytes[random() % written.size()] ^= 1u << random() % 8;
      TierRig rig(medium);
      for (int i = 0; i < 40; ++i) CHECK(rig.get(name_of(i), length_of(i)) != Got::kWrong);
      CHECK(rig.write("after", 3000));
    }
  }
}

TEST(a_truncated_file_is_what_is_left_of_it) {
  const auto medium = new_medium();
  {
    TierRig rig(medium);
    for (int i = 0; i < 60; ++i) CHECK(rig.write(name_of(i), length_of(i)));
  }
  std::fill(medium->bytes.begin() + 400'000, medium->bytes.end(), 0);
  TierRig rig(medium);
  int right = 0;
  for (int i = 0; i < 60; ++i) {
    const Got got = rig.get(name_of(i), length_of(i));
    CHECK(got != Got::kWrong);
    right += got == Got::kRight;
  }
  CHECK(right > 0 && right < 60);
}

TEST(a_crash_at_any_byte_leaves_no_wrong_page) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto medium = new_medium();
  for (int round = 0; round < 40; ++round) {
    medium->bytes_until_cut = static_cast<int64_t>(random() % 6'000'000);
    {
      TierRig rig(medium);
      for (int i = 0; i < 100; ++i) {
        const int page = static_cast<int>(random() % 400);
        rig.memory.put(name_of(page), length_of(page));
        rig.note(name_of(page));
      }
      CHECK(comes([&] { return rig.stat("disk_queued_pages") == 0; }));
    }
    medium->bytes_until_cut = -1;
    TierRig rig(medium);
    for (int i = 0; i < 400; ++i) CHECK(rig.get(name_of(i), length_of(i)) != Got::kWrong);
  }
}

TEST(what_was_forgotten_is_not_found_by_the_next_process) {
  const auto medium = new_medium();
  {
    TierRig rig(medium);
    CHECK(rig.write("kept", 5000));
    CHECK(rig.write("forgotten", 5000));
    CHECK(rig.tier.stays(disk_page("forgotten").fp));
    const uint64_t writes = medium->writes;
    CHECK(rig.tier.forget(disk_page("forgotten").fp));
    CHECK(!rig.tier.forget(disk_page("forgotten").fp));
    CHECK(!rig.tier.stays(disk_page("forgotten").fp));
    CHECK(rig.get("forgotten", 5000) == Got::kMiss);
    CHECK(comes([&] {
      const std::lock_guard<std::mutex> lock(medium->mutex);
      return medium->writes > writes;
    }));
  }
  TierRig rig(medium);
  CHECK(rig.get("forgotten", 5000) == Got::kMiss);
  CHECK(rig.get("kept", 5000) == Got::kRight);
}

TEST(a_page_that_is_forgotten_while_it_is_written_does_not_come_back) {
  TierRig rig(new_medium());
  CHECK(rig.write("first", 1000));
  rig.medium->hang(true);
  rig.memory.put("page", 5000);
  rig.note("page");
  CHECK(comes([&] { return rig.medium->now_hanging() == 1; }));
  CHECK(rig.tier.stays(disk_page("page").fp));  // on its way
  rig.tier.forget(disk_page("page").fp);
  CHECK(!rig.tier.stays(disk_page("page").fp));
  rig.medium->hang(false);
  CHECK(rig.write("later", 1000));
  CHECK(rig.get("page", 5000) == Got::kMiss);
  CHECK_EQ(rig.memory.gone().count(disk_page("page").fp.lo), 1u);
}

TEST(a_full_disk_sheds_writes_and_reads_as_ever_and_heals) {
  TierRig rig(new_medium());
  CHECK(rig.write("page", 5000));
  rig.medium->set(&DiskMedium::write_error, ENOSPC);
  for (int i = 0; i < 10; ++i) rig.memory.put(name_of(i), 5000);
  CHECK(comes([&] {
    for (int i = 0; i < 10; ++i) rig.note(name_of(i));
    return rig.stat("disk_write_alarm") == 1;
  }));
  CHECK(rig.stat("disk_shed_writes") > 0);
  CHECK_EQ(rig.stat("disk_read_alarm"), 0u);
  CHECK(rig.get("page", 5000) == Got::kRight);
  CHECK(rig.memory.gone().size() > 0);
  rig.medium->set(&DiskMedium::write_error, 0);
  CHECK(comes([&] { return rig.stat("disk_write_alarm") == 0; }));  // with nothing asked of it
  CHECK(rig.write("after", 5000));
  CHECK(rig.get("page", 5000) == Got::kRight);
  CHECK_EQ(rig.stat("disk_alarms"), 1u);
}

TEST(a_place_that_can_not_be_written_is_passed_over) {
  TierRig rig(new_medium());
  CHECK(rig.write("page", 5000));
  rig.medium->set(&DiskMedium::write_error, EIO);
  rig.memory.put("lost", 5000);
  rig.note("lost");
  CHECK(comes([&] { return rig.stat("disk_write_errors") > 0; }));
  rig.medium->set(&DiskMedium::write_error, 0);
  CHECK(rig.write("after", 5000));
  CHECK(rig.get("page", 5000) == Got::kRight);
  CHECK(rig.get("after", 5000) == Got::kRight);
}

TEST(a_disk_that_can_not_be_read_is_left_alone_until_it_is_well) {
  TierRig rig(new_medium());
  for (int i = 0; i < 10; ++i) CHECK(rig.write(name_of(i), 5000));
  rig.medium->set(&DiskMedium::read_error, EIO);
  for (int i = 0; i < 10; ++i) CHECK(rig.get(name_of(i), 5000) == Got::kMiss);
  CHECK_EQ(rig.stat("disk_read_alarm"), 1u);
  CHECK(!rig.tier.pin(disk_page(name_of(9)).fp, 1));
  CHECK(rig.stat("disk_pages") >= 5);  // what was not tried is not given up
  rig.medium->set(&DiskMedium::read_error, 0);
  CHECK(comes([&] { return rig.stat("disk_read_alarm") == 0; }));
  CHECK(rig.get(name_of(9), 5000) == Got::kRight);
}

TEST(a_hung_disk_holds_nobody_up) {
  TierRig rig(new_medium(), 1, 2000);
  for (int i = 0; i < 10; ++i) CHECK(rig.write(name_of(i), 5000));
  rig.medium->hang(true);
  const auto began = DiskTier::Clock::now();
  CHECK(rig.get(name_of(0), 5000, 300) == Got::kMiss);
  CHECK(DiskTier::Clock::now() - began < std::chrono::seconds(20));
  CHECK(comes([&] { return rig.stat("disk_read_alarm") == 2; }));
  for (int i = 0; i < 1000; ++i)
    CHECK(rig.get(name_of(1), 5000) == Got::kMiss);  // at once, though it has long
  rig.memory.put("new", 5000);
  for (int i = 0; i < 1000; ++i) rig.note("new");
  CHECK_EQ(rig.tier.lengths({disk_page(name_of(1))})[0], 0u);
  rig.medium->hang(false);
  CHECK(comes([&] { return rig.stat("disk_read_alarm") == 0 && rig.stat("disk_write_alarm") == 0; }));
  CHECK(rig.get(name_of(1), 5000) == Got::kRight);
}

TEST(what_waits_to_be_written_is_bounded) {
  const auto medium = new_medium();
  PagesInMemory memory;
  DiskTierOptions o = TierRig::options(medium, 1, 60'000);
  o.queued_pages_max = 10;
  DiskTier tier(o, memory);  // nobody writes
  for (int i = 0; i < 30; ++i) tier.note({disk_page(name_of(i))});
  std::map<std::string, uint64_t> stats;
  tier.stats(stats);
  CHECK_EQ(stats.at("disk_queued_pages"), 10u);
  CHECK_EQ(stats.at("disk_shed_writes"), 20u);
}

TEST(what_is_read_at_a_time_is_bounded) {
  const auto medium = new_medium();
  TierRig rig(medium);
  for (int i = 0; i < 4; ++i) CHECK(rig.write(name_of(i), 60'000));
  rig.tier.close();
  PagesInMemory memory;
  DiskTierOptions o = TierRig::options(medium, 1, 60'000);
  o.read_bytes_max = 150'000;
  DiskTier tier(o, memory);
  tier.start();
  std::vector<DiskTier::Page> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(disk_page(name_of(i)));
  const auto deadline = DiskTier::Clock::now() + std::chrono::seconds(30);
  auto read = tier.read(pages, deadline, kNever);
  const auto count =
      std::count_if(read.begin(), read.end(), [](const DiskPage& p) { return p.buffer != nullptr; });
  CHECK_EQ(count, 2);
  read.clear();  // what was taken is given back
  CHECK(tier.read({pages[3]}, deadline, kNever)[0].buffer != nullptr);
}

TEST_MAIN()
