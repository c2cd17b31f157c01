// A segment's store with a disk tier: what memory evicts comes back, the directory hears of it what is so, and a disk in
// trouble is no trouble of memory's.
#include <map>
#include <random>
#include <set>

#include "check.hpp"
#include "segment/disk/disk_fixture.hpp"
#include "segment/pool_place.hpp"

using namespace kvstore;
using namespace kvstore::testing;

namespace {

constexpr uint32_t kLength = 30'000;
constexpr uint64_t kPoolBytes = 1u << 20;  // some 34 pages; the disk has 15 regions for some 8 each
constexpr int kPages = 90;

std::string name_of(int i) { return "page-" + std::to_string(i); }

SegmentStoreOptions with_disk(const std::shared_ptr<DiskMedium>& medium, uint32_t admit_uses = 1) {
  SegmentStoreOptions o = small_store(kPoolBytes);
  o.disk = TierRig::options(medium, admit_uses, 60'000);
  o.disk.wait_ms = 30'000;
  o.eviction_policy = "lru";
  return o;
}

// A master's account of the segment: what its journal or an inventory has told.
struct Told {
  std::set<std::pair<uint64_t, uint64_t>> pages;

  void groups(const std::vector<uint8_t>& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const auto op = static_cast<JournalOp>(bytes[at]);
      CHECK(op == JournalOp::kAdd || op == JournalOp::kRemove);
      uint32_t count;
      std::memcpy(&count, bytes.data() + at + 4, 4);
      for (uint32_t i = 0; i < count; ++i) {
        std::pair<uint64_t, uint64_t> fp;
        std::memcpy(&fp.first, bytes.data() + at + 16 + i * 16, 8);
        std::memcpy(&fp.second, bytes.data() + at + 24 + i * 16, 8);
        if (op == JournalOp::kAdd)
          pages.insert(fp);
        else
          pages.erase(fp);
      }
      at += 16 + size_t{count} * 20;
    }
  }
  void inventory(SegmentStore& store, size_t entries_max = 7) {
    pages.clear();
    auto left = store.begin_inventory();
    for (bool done = false; !done;) {
      std::vector<uint8_t> slice;
      done = store.inventory_slice(left, entries_max, slice);
      groups(slice);
    }
  }
  void journal(SegmentStore& store) {
    while (const auto batch = store.journal().drain(1000)) groups(batch->groups);
  }
  bool has(const std::string& name) const {
    const Fingerprint fp = disk_page(name).fp;
    return pages.count({fp.lo, fp.hi}) != 0;
  }
};

uint64_t stat(SegmentStore& store, const std::string& name) { return store.stats().at(name); }

// As the data port answers a GET.
wire::Status get(SegmentStore& store, const std::string& name, uint32_t wait_ms = 0,
                 bool* from_disk = nullptr) {
  const Keys keys({name});
  std::vector<ReadEntry> reads = store.acquire_reads(keys.block(), nullptr);
  store.read_from_disk(keys.block(), nullptr, wait_ms, kNever, reads);
  wire::Status status = reads[0].status;
  if (from_disk != nullptr) *from_disk = reads[0].from_disk != nullptr;
  if (status == wire::Status::kOk) {
    const auto expected = content(name, kLength);
    if (reads[0].length != kLength || std::memcmp(reads[0].data, expected.data(), kLength) != 0 ||
        crc32c(0, reads[0].data, kLength) != reads[0].digest)
      status = wire::Status::kDigestMismatch;
  }
  store.release_reads(reads);
  return status;
}

bool written(SegmentStore& store) {
  return comes([&] {
    const auto stats = store.stats();
    return stats.at("disk_queued_pages") == 0 &&
           stats.at("disk_written_pages") + stats.at("disk_gone_before_write") > 0;
  });
}

// Puts pages one after the other, each written to disk before the next.
void fill(SegmentStore& store, int first, int end) {
  for (int i = first; i < end; ++i) {
    CHECK(put_one(store, name_of(i), kLength) == wire::Status::kOk);
    const uint64_t due = static_cast<uint64_t>(i + 1 - first);
    CHECK(comes([&] { return stat(store, "disk_written_pages") >= due; }));
  }
}

}  // namespace

TEST(everything_that_memory_had_no_room_for_is_read_back) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  fill(store, 0, kPages);
  CHECK(stat(store, "evicted_to_disk_objects") > kPages / 2);
  CHECK(stat(store, "object_count") < kPages / 2);
  for (int i = 0; i < kPages; ++i) CHECK(get(store, name_of(i)) == wire::Status::kOk);
  CHECK(stat(store, "disk_hits") > kPages / 2);
}

TEST(the_directory_keeps_what_went_to_disk_and_drops_what_left_it) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  Told told;
  told.inventory(store);
  fill(store, 0, kPages);
  told.journal(store);
  for (int i = 0; i < kPages; ++i) CHECK(told.has(name_of(i)));
  fill(store, kPages, 4 * kPages);  // more than the disk has room for
  told.journal(store);
  int gone = 0;
  for (int i = 0; i < 4 * kPages; ++i) {
    const bool there = get(store, name_of(i)) == wire::Status::kOk;
    told.journal(store);
    CHECK_EQ(told.has(name_of(i)), there);
    gone += !there;
  }
  CHECK(gone > 0);
  Told anew;
  anew.inventory(store);
  CHECK(anew.pages == told.pages);
}

TEST(one_time_pages_are_not_written_and_are_told_gone) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>(), 2));
  Told told;
  told.inventory(store);
  CHECK(put_one(store, "twice", kLength) == wire::Status::kOk);
  CHECK(get(store, "twice") == wire::Status::kOk);
  CHECK(comes([&] { return stat(store, "disk_written_pages") == 1; }));
  for (int i = 0; i < kPages; ++i) CHECK(put_one(store, name_of(i), kLength) == wire::Status::kOk);
  CHECK_EQ(stat(store, "disk_written_pages"), 1u);
  told.journal(store);
  CHECK(!told.has(name_of(0)));
  CHECK(told.has("twice"));
  CHECK(get(store, "twice") == wire::Status::kOk);
  CHECK(get(store, name_of(0)) == wire::Status::kMiss);
}

TEST(what_is_read_repeatedly_comes_into_memory) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  fill(store, 0, kPages);
  bool from_disk = false;
  CHECK(get(store, name_of(0), 0, &from_disk) == wire::Status::kOk);
  CHECK(from_disk);
  CHECK_EQ(stat(store, "disk_promoted_pages"), 0u);
  CHECK(get(store, name_of(0), 0, &from_disk) == wire::Status::kOk);
  CHECK(from_disk);
  CHECK_EQ(stat(store, "disk_promoted_pages"), 1u);
  CHECK(get(store, name_of(0), 0, &from_disk) == wire::Status::kOk);
  CHECK(!from_disk);
  CHECK_EQ(stat(store, "puts"), static_cast<uint64_t>(kPages));
}

TEST(readers_of_the_pool_find_it_in_the_pool) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  fill(store, 0, kPages);
  const Keys keys({name_of(0), name_of(1), "never", name_of(kPages - 1)});
  auto reads = store.acquire_reads(keys.block(), nullptr);
  CHECK(reads[0].status == wire::Status::kMiss && reads[3].status == wire::Status::kOk);
  CHECK(store.bring_into_memory(keys.block(), 0, kNever, 0, reads));
  for (const int i : {0, 1, 3}) {
    CHECK(reads[i].status == wire::Status::kOk);
    CHECK(reads[i].slot != kNoSlot && reads[i].from_disk == nullptr);
  }
  CHECK(reads[2].status == wire::Status::kMiss);
  const auto expected = content(name_of(1), kLength);
  CHECK(std::memcmp(reads[1].data, expected.data(), kLength) == 0);
  store.release_reads(reads);
}

TEST(exists_says_what_is_on_disk) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  fill(store, 0, kPages);
  CHECK(get_one(store, name_of(0)) == wire::Status::kMiss);  // not in memory
  const Keys keys({name_of(0), "never"});
  const auto statuses = store.pin(keys.block(), 10'000);
  CHECK_EQ(statuses[0], static_cast<uint8_t>(wire::Status::kOk));
  CHECK_EQ(statuses[1], static_cast<uint8_t>(wire::Status::kMiss));
}

TEST(what_is_removed_is_gone_from_both) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  Told told;
  told.inventory(store);
  fill(store, 0, kPages);
  for (const int i : {0, kPages - 1}) {
    const auto [statuses, seq] = store.remove(Keys({name_of(i)}).block());
    CHECK_EQ(statuses[0], static_cast<uint8_t>(wire::Status::kOk));
    CHECK(seq > 0);
    CHECK(get(store, name_of(i)) == wire::Status::kMiss);
  }
  told.journal(store);
  CHECK(!told.has(name_of(0)) && !told.has(name_of(kPages - 1)) && told.has(name_of(1)));
  const auto [again, seq] = store.remove(Keys({name_of(0)}).block());
  CHECK_EQ(again[0], static_cast<uint8_t>(wire::Status::kMiss));
}

TEST(a_surplus_copy_is_dropped_from_both_and_one_on_disk_alone_is_left) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  fill(store, 0, kPages);
  Told told;
  told.journal(store);
  const int last = kPages - 1;  // in memory and on disk; the first has left memory
  const NamespaceId ns = Keys({name_of(0)}).block().ns;
  const auto statuses = store.drop_objects(ns, {disk_page(name_of(0)).fp, disk_page(name_of(last)).fp});
  CHECK(statuses[0] == static_cast<uint8_t>(wire::Status::kUnavailable));
  CHECK(statuses[1] == static_cast<uint8_t>(wire::Status::kOk));
  told.journal(store);
  CHECK(told.has(name_of(0)) && !told.has(name_of(last)));
  CHECK(get(store, name_of(0)) == wire::Status::kOk);
  CHECK(get(store, name_of(last)) == wire::Status::kMiss);
}

TEST(pages_of_a_namespace_that_ended_are_not_served_from_disk) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  fill(store, 0, kPages);
  store.retire_namespace(kNs);
  CHECK(get(store, name_of(0)) == wire::Status::kMiss);
  Told told;
  told.inventory(store);
  CHECK(told.pages.empty());
}

TEST(a_damaged_page_in_memory_is_served_from_disk) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  fill(store, 0, 3);
  const Keys keys({name_of(1)});
  const auto reads = store.acquire_reads(keys.block(), nullptr);
  const_cast<uint8_t*>(reads[0].data)[17] ^= 1;
  store.release_reads(reads);
  CHECK_EQ(store.verify(keys.block())[0], static_cast<uint8_t>(wire::Status::kDigestMismatch));
  CHECK(get(store, name_of(1)) == wire::Status::kOk);
  Told told;
  told.inventory(store);
  CHECK(told.has(name_of(1)));
}

TEST(other_bytes_under_the_same_key_replace_those_on_disk) {
  SegmentStore store(with_disk(std::make_shared<DiskMedium>()));
  fill(store, 0, kPages);
  const Keys keys({name_of(0)});
  CHECK(get_one(store, name_of(0)) == wire::Status::kMiss);
  CHECK(put_one(store, name_of(0), 999) == wire::Status::kOk);
  auto reads = store.acquire_reads(keys.block(), nullptr);
  CHECK_EQ(reads[0].length, 999u);
  store.release_reads(reads);
  fill(store, 200, 200);
  for (int i = 200; i < 300; ++i) CHECK(put_one(store, name_of(i), kLength) == wire::Status::kOk);
  reads = store.acquire_reads(keys.block(), nullptr);
  store.read_from_disk(keys.block(), nullptr, 0, kNever, reads);
  CHECK(reads[0].status != wire::Status::kOk || reads[0].length == 999);
  store.release_reads(reads);
}

TEST(a_restart_serves_what_is_on_disk_once_it_knows_the_namespaces) {
  const auto medium = std::make_shared<DiskMedium>();
  {
    SegmentStore store(with_disk(medium));
    fill(store, 0, kPages);
  }
  SegmentStore store(with_disk(medium));  // with a new pool
  CHECK_EQ(stat(store, "object_count"), 0u);
  CHECK(get(store, name_of(0)) == wire::Status::kMiss);
  const auto namespaces = store.namespaces();
  CHECK(namespaces == std::vector<NamespaceId>{kNs});
  store.set_namespaces(namespaces, namespaces);
  CHECK(store.journal().last_seq() > 0);  // a gap, which an inventory closes
  Told told;
  told.inventory(store);
  for (int i = 0; i < kPages; ++i) {
    CHECK(told.has(name_of(i)));
    CHECK(get(store, name_of(i)) == wire::Status::kOk);
  }
  store.set_namespaces({}, namespaces);  // it ended
  CHECK(get(store, name_of(0)) == wire::Status::kMiss);
}

TEST(a_kept_pool_and_its_disk_go_on_together) {
  const PoolPlace place;
  const auto medium = std::make_shared<DiskMedium>();
  SegmentStoreOptions o = with_disk(medium);
  o.pool.path = place.file("pool");
  o.segment_id = {2};
  Told told;
  {
    SegmentStore store(o);
    told.inventory(store);
    fill(store, 0, kPages);
    told.journal(store);
  }
  SegmentStore store(o);
  CHECK(store.pool_content().warm);
  store.set_namespaces({kNs}, {kNs});
  Told anew;
  anew.inventory(store);
  CHECK(anew.pages == told.pages);
  for (int i = 0; i < kPages; ++i) CHECK(get(store, name_of(i)) == wire::Status::kOk);
}

TEST(a_hung_disk_is_no_trouble_of_memorys) {
  const auto medium = std::make_shared<DiskMedium>();
  SegmentStoreOptions o = with_disk(medium);
  o.disk.slow_ms = 2000;
  SegmentStore store(o);
  fill(store, 0, kPages);
  medium->hang(true);
  CHECK(get(store, name_of(0), 300) == wire::Status::kMiss);
  for (int round = 0; round < 5; ++round)
    for (int i = 1000 * (round + 1); i < 1000 * (round + 1) + 50; ++i) {
      const auto began = SegmentStore::Clock::now();
      CHECK(put_one(store, name_of(i), kLength) == wire::Status::kOk);
      CHECK(get(store, name_of(i)) == wire::Status::kOk);
      CHECK(SegmentStore::Clock::now() - began <
            std::chrono::seconds(20));  // not the 30 of a wait for the disk
    }
  CHECK(comes([&] { return stat(store, "disk_read_alarm") != 0; }));
  // What can't be read is not promised.
  CHECK_EQ(store.pin(Keys({name_of(1)}).block(), 1000)[0], static_cast<uint8_t>(wire::Status::kMiss));
  medium->hang(false);
  CHECK(comes([&] { return stat(store, "disk_read_alarm") == 0; }));
  CHECK(written(store));
}

TEST(what_is_told_is_what_is_there_after_much_at_once) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  SegmentStore store(with_disk(std::make_shared<DiskMedium>(), 2));
  Told told;
  told.inventory(store);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      for (int n = 0; n < 1500; ++n) {
        const std::string name = name_of(static_cast<int>(random() % 300));
        switch (random() % 8) {
          case 0:
            store.remove(Keys({name}).block());
            break;
          case 1:
            store.pin(Keys({name}).block(), 1);
            break;
          case 2: {
            const Keys keys({name});
            auto reads = store.acquire_reads(keys.block(), nullptr);
            store.bring_into_memory(keys.block(), 0, kNever, 0, reads);
            store.release_reads(reads);
            break;
          }
          case 3:
          case 4: {
            const wire::Status status = get(store, name);
            CHECK(status == wire::Status::kOk || status == wire::Status::kMiss);
            break;
          }
          default: {
            const wire::Status status = put_one(store, name, kLength);
            CHECK(status == wire::Status::kOk || status == wire::Status::kExists);
          }
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(comes([&] { return stat(store, "disk_queued_pages") == 0; }));
  // Of how much else there was a writer that is starved may have had no part.
  CHECK(stat(store, "disk_written_pages") > 0);
  store.close();  // the threads are through with what they had begun
  told.journal(store);
  Told anew;
  anew.inventory(store);
  CHECK(anew.pages == told.pages);
}

TEST_MAIN()
