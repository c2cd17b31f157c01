#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "segment/object_fixture.hpp"
#include "segment/segment_store.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Status;

TEST(a_put_object_is_read_back_and_counted) {
  SegmentStore store(small_store());
  CHECK_EQ(put_one(store, "a", 10000), Status::kOk);
  CHECK_EQ(put_one(store, "a", 10000), Status::kExists);
  CHECK_EQ(put_one(store, "a", 10001), Status::kConflict);
  CHECK_EQ(get_one(store, "a"), Status::kOk);
  CHECK_EQ(get_one(store, "b"), Status::kMiss);
  const auto stats = store.stats();
  CHECK_EQ(stats.at("puts"), uint64_t{1});
  CHECK_EQ(stats.at("put_bytes"), uint64_t{10000});
  CHECK_EQ(stats.at("gets"), uint64_t{1});
  CHECK_EQ(stats.at("misses"), uint64_t{1});
  CHECK_EQ(stats.at("conflicts"), uint64_t{1});
}

TEST(of_many_writers_of_one_key_exactly_one_seals_it) {
  SegmentStore store(small_store(8 << 20));
  for (int round = 0; round < 20; ++round) {
    const std::string name = "round " + std::to_string(round);
    std::atomic<int> sealed{0}, existed{0};
    std::vector<std::thread> writers;
    for (int i = 0; i < 6; ++i)
      writers.emplace_back([&] {
        const Status status = put_one(store, name, 60000);
        sealed += status == Status::kOk;
        existed += status == Status::kExists;
      });
    for (std::thread& w : writers) w.join();
    CHECK_EQ(sealed.load(), 1);
    CHECK_EQ(existed.load(), 5);
    CHECK_EQ(get_one(store, name), Status::kOk);
  }
  CHECK_EQ(store.stats().at("object_count"), uint64_t{20});
  CHECK_EQ(store.stats().at("used_bytes"), uint64_t{20 * ExtentAllocator::rounded(60000)});
  CHECK_EQ(store.stats().at("conflicts"), uint64_t{0});
}

TEST(the_same_key_with_other_bytes_is_exists_and_counted_as_a_conflict) {
  SegmentStore store(small_store());
  const Keys keys({"k"});
  const Put put(keys, 4);
  std::vector<WriteEntry> first(1), second(1);
  const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(1);
  store.reserve_writes(put.request(), 0, 1, deadline, kNever, first);
  store.reserve_writes(put.request(), 0, 1, deadline, kNever, second);
  CHECK(first[0].data != nullptr && second[0].data != nullptr && first[0].data != second[0].data);
  first[0].digest = copy_crc32c(0, first[0].data, "AAAA", 4);
  second[0].digest = copy_crc32c(0, second[0].data, "BBBB", 4);
  CHECK_EQ(store.seal_writes(put.request(), second), uint64_t{1});
  CHECK_EQ(store.seal_writes(put.request(), first), uint64_t{1});  // durable when the other's entry is
  CHECK_EQ(second[0].status, Status::kOk);
  CHECK_EQ(first[0].status, Status::kExists);
  CHECK_EQ(store.stats().at("conflicts"), uint64_t{1});
  CHECK_EQ(store.journal().last_seq(), uint64_t{1});
}

namespace {

// What a directory makes of groups: fingerprint -> length.
using Directory = std::map<std::pair<uint64_t, uint64_t>, uint32_t>;

size_t apply_groups(const std::vector<uint8_t>& groups, Directory& directory) {
  wire::Reader reader(groups.data(), groups.size());
  size_t entries = 0;
  while (reader.left() > 0) {
    const auto op = static_cast<JournalOp>(reader.u8("op"));
    reader.bytes(3, "reserved");
    const uint32_t count = reader.u32("count");
    reader.bytes(kNamespaceBytes, "ns");
    const uint8_t* fps = reader.bytes(size_t{count} * kFingerprintBytes, "fingerprints");
    const uint8_t* lengths = reader.bytes(size_t{count} * 4, "lengths");
    for (uint32_t i = 0; i < count; ++i) {
      std::pair<uint64_t, uint64_t> fp;
      std::memcpy(&fp.first, fps + i * kFingerprintBytes, 8);
      std::memcpy(&fp.second, fps + i * kFingerprintBytes + 8, 8);
      if (op == JournalOp::kAdd)
        directory[fp] = wire::u32_at(lengths, i);
      else
        directory.erase(fp);
    }
    entries += count;
  }
  return entries;
}

Directory whole_content(SegmentStore& store) {
  Directory all;
  std::vector<uint8_t> groups;
  SegmentStore::Inventory left = store.begin_inventory();
  while (!store.inventory_slice(left, 1000, groups)) {
  }
  apply_groups(groups, all);
  return all;
}

void remove_one(SegmentStore& store, const std::string& name) {
  const Keys keys({name});
  store.remove(keys.block());
}

}  // namespace

TEST(an_inventory_in_slices_and_the_journal_after_it_say_what_is_there_whatever_changes_between_them) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    SegmentStore store(small_store(1 << 18));  // 50 objects of 5000 bytes: evicts all the time
    const auto change = [&] {
      const std::string name = "k" + std::to_string(random() % 40);
      if (random() % 3 == 0)
        remove_one(store, name);
      else
        put_one(store, name, 5000);
    };
    for (int i = 0; i < 60; ++i) change();
    SegmentStore::Inventory left = store.begin_inventory();
    CHECK_EQ(left.last_seq, store.journal().last_seq());
    Directory directory;
    for (bool done = false; !done;) {
      std::vector<uint8_t> groups;
      done = store.inventory_slice(left, 1 + random() % 8, groups);
      CHECK(apply_groups(groups, directory) <= size_t{8});
      for (unsigned i = random() % 6; i > 0; --i) change();
    }
    uint64_t expected = left.last_seq + 1;
    while (const auto batch = store.journal().drain(16)) {
      CHECK_EQ(batch->first_seq, expected);  // the journal goes on right behind the inventory
      expected = batch->last_seq + 1;
      apply_groups(batch->groups, directory);
    }
    CHECK(directory == whole_content(store));
  }
}

TEST(every_put_and_every_eviction_is_an_entry_of_the_journal) {
  SegmentStore store(small_store(1 << 18));
  for (int i = 0; i < 300; ++i) CHECK_EQ(put_one(store, "k" + std::to_string(i), 5000), Status::kOk);
  store.evict_bytes(50000);
  const auto stats = store.stats();
  CHECK(stats.at("evicted_objects") > 200);
  Directory directory;
  uint64_t entries = 0;
  while (const auto batch = store.journal().drain(64)) entries += apply_groups(batch->groups, directory);
  // The evictor may have gone on since the numbers were read.
  CHECK(entries >= stats.at("puts") + stats.at("evicted_objects"));
  store.close();
  while (const auto batch = store.journal().drain(64)) entries += apply_groups(batch->groups, directory);
  CHECK_EQ(entries, store.stats().at("puts") + store.stats().at("evicted_objects"));
  CHECK_EQ(directory.size(), size_t{store.stats().at("object_count")});
}

TEST(three_times_the_capacity_with_readers_refuses_nothing_and_never_serves_a_wrong_byte) {
  SegmentStore store(small_store(2 << 20));
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0}, refused{0}, hits{0};
  std::vector<std::thread> threads;
  for (unsigned r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      std::mt19937 rng(seed + r);
      while (!done.load()) {
        const Status status = get_one(store, std::to_string(rng() % 400));
        hits += status == Status::kOk;
        wrong += status != Status::kOk && status != Status::kMiss;
      }
    });
  std::vector<std::thread> writers;
  for (int w = 0; w < 2; ++w)
    writers.emplace_back([&, w] {
      for (int i = w; i < 400; i += 2) {
        const Status status =
            put_one(store, std::to_string(i), 10000 + static_cast<uint32_t>(i * 37 % 12000));
        refused += status != Status::kOk;
      }
    });
  for (std::thread& t : writers) t.join();
  done = true;
  for (std::thread& t : threads) t.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK_EQ(refused.load(), 0);
  CHECK(store.stats().at("evicted_objects") > 200);
  CHECK_EQ(store.stats().at("no_space"), uint64_t{0});
  // Of what the writers put, either's last may be old by now: one of them may have run long before the other.
  CHECK_EQ(put_one(store, "last", 20000), Status::kOk);
  CHECK_EQ(get_one(store, "last"), Status::kOk);
}

TEST(the_evictor_keeps_as_much_free_ahead_of_need_as_it_is_told_and_no_more) {
  SegmentStoreOptions options = small_store(1 << 20);
  options.free_ahead_bytes = options.capacity_bytes / 4;
  SegmentStore store(options);
  for (int i = 0; i < 20; ++i) CHECK_EQ(put_one(store, std::to_string(i), 50000), Status::kOk);
  const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(60);
  const uint64_t used_max = options.capacity_bytes - options.free_ahead_bytes;
  while (store.stats().at("used_bytes") > used_max && SegmentStore::Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(store.stats().at("used_bytes") <= used_max);
  // One step may free an eighth of the reserve, and one object, more than it takes.
  CHECK(store.stats().at("used_bytes") > used_max - options.free_ahead_bytes / 8 - 2 * 50000);
  CHECK_EQ(get_one(store, "19"), Status::kOk);
  CHECK_EQ(get_one(store, "0"), Status::kMiss);
}

TEST(a_pool_is_filled_but_for_a_small_reserve) {
  SegmentStore store(small_store(8 << 20));
  for (int i = 0; i < 4000; ++i) CHECK_EQ(put_one(store, std::to_string(i), 4096), Status::kOk);
  CHECK(store.stats().at("used_bytes") >= uint64_t{8 << 20} / 100 * 98);
}

TEST(of_a_batch_the_tail_is_evicted_before_the_head) {
  SegmentStoreOptions options = small_store(1 << 20);
  options.free_ahead_bytes = 0;
  SegmentStore store(options);
  std::vector<std::string> names;
  for (int i = 0; i < 8; ++i) names.push_back(std::to_string(i));
  const Keys keys(names);
  const Put put(keys, 100000);
  std::vector<WriteEntry> writes(8);
  store.reserve_writes(put.request(), 0, 8, SegmentStore::Clock::now(), kNever, writes);
  store.seal_writes(put.request(), writes);
  for (const WriteEntry& w : writes) CHECK_EQ(w.status, Status::kOk);
  store.evict_bytes(3 * 100000);
  const auto statuses = store.pin(keys.block(), 0);
  for (int i = 0; i < 8; ++i) CHECK_EQ(int{statuses[static_cast<size_t>(i)]}, i < 5 ? 0 : 1);
}

TEST(a_writer_waits_for_a_reader_to_leave_and_then_gets_the_space) {
  SegmentStoreOptions options = small_store(1 << 20);
  options.free_ahead_bytes = 0;
  SegmentStore store(options);
  CHECK_EQ(put_one(store, "old", 900000), Status::kOk);
  const Keys keys({"old"});
  const auto reads = store.acquire_reads(keys.block(), nullptr);
  CHECK_EQ(put_one(store, "new", 900000, kNs, 20), Status::kNoSpace);
  std::thread writer([&] { CHECK_EQ(put_one(store, "new", 900000, kNs, 20000), Status::kOk); });
  store.release_reads(reads);
  writer.join();
  CHECK_EQ(get_one(store, "new"), Status::kOk);
  CHECK_EQ(get_one(store, "old"), Status::kMiss);
}

TEST(a_writer_that_is_given_up_does_not_wait_for_space) {
  SegmentStoreOptions options = small_store(1 << 20);
  options.free_ahead_bytes = 0;
  SegmentStore store(options);
  CHECK_EQ(put_one(store, "old", 900000), Status::kOk);
  const Keys old({"old"}), keys({"new"});
  const auto reads = store.acquire_reads(old.block(), nullptr);
  const Put put(keys, 900000);
  std::vector<WriteEntry> writes(1);
  const std::atomic<bool> cancelled{true};
  const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(60);
  store.reserve_writes(put.request(), 0, 1, deadline, cancelled, writes);
  CHECK_EQ(writes[0].status, Status::kNoSpace);
  CHECK(SegmentStore::Clock::now() < deadline);
  store.release_reads(reads);
}

TEST(a_namespace_retired_in_the_middle_of_a_put_refuses_it) {
  SegmentStore store(small_store());
  const Keys keys({"k"});
  const Put put(keys, 4);
  std::vector<WriteEntry> writes(1);
  store.reserve_writes(put.request(), 0, 1, SegmentStore::Clock::now(), kNever, writes);
  store.retire_namespace(kNs);
  store.seal_writes(put.request(), writes);
  CHECK_EQ(writes[0].status, Status::kStaleNamespace);
  CHECK_EQ(store.stats().at("used_bytes"), uint64_t{0});
}

TEST(a_retired_namespace_is_neither_read_pinned_nor_written) {
  SegmentStore store(small_store());
  CHECK_EQ(put_one(store, "a", 1000), Status::kOk);
  store.retire_namespace(kNs);
  CHECK_EQ(get_one(store, "a"), Status::kMiss);
  const Keys keys({"a", "b"});
  for (const uint8_t status : store.pin(keys.block(), 1000))
    CHECK_EQ(status, static_cast<uint8_t>(Status::kMiss));
  CHECK_EQ(store.stats().at("pinned_bytes"), uint64_t{0});
  const Put put(keys, 1000);
  std::vector<WriteEntry> writes(2);
  store.reserve_writes(put.request(), 0, 2, SegmentStore::Clock::now(), kNever, writes);
  for (const WriteEntry& write : writes) {
    CHECK_EQ(write.status, Status::kStaleNamespace);
    CHECK(write.data == nullptr);
  }
}

TEST(an_object_of_another_length_than_the_reader_expects_is_not_read) {
  SegmentStore store(small_store());
  CHECK_EQ(put_one(store, "a", 1000), Status::kOk);
  const Keys keys({"a"});
  for (const uint32_t expected : {999u, 1000u, 0u}) {
    const auto reads = store.acquire_reads(keys.block(), reinterpret_cast<const uint8_t*>(&expected));
    CHECK_EQ(reads[0].status, expected == 999 ? Status::kLengthMismatch : Status::kOk);
    CHECK_EQ(reads[0].slot == kNoSlot, expected == 999);
    store.release_reads(reads);
  }
}

TEST(what_was_read_last_is_evicted_last) {
  SegmentStore store(small_store());
  for (const char* name : {"a", "b", "c"}) CHECK_EQ(put_one(store, name, 1000), Status::kOk);
  CHECK_EQ(get_one(store, "a"), Status::kOk);
  CHECK(store.evict_bytes(2 * ExtentAllocator::rounded(1000)) > 0);
  CHECK_EQ(get_one(store, "a"), Status::kOk);
  CHECK_EQ(get_one(store, "b"), Status::kMiss);
  CHECK_EQ(get_one(store, "c"), Status::kMiss);
}

TEST(a_removal_is_an_entry_of_the_journal) {
  SegmentStore store(small_store());
  const Keys keys({"a", "absent"});
  CHECK_EQ(put_one(store, "a", 1000), Status::kOk);
  const auto removed = store.remove(keys.block());
  CHECK(removed.first == SegmentStore::Statuses({0, 1}));
  CHECK_EQ(removed.second, uint64_t{2});
  CHECK_EQ(store.journal().last_seq(), uint64_t{2});
  CHECK_EQ(store.remove(keys.block()).second, uint64_t{0});
  CHECK_EQ(store.journal().last_seq(), uint64_t{2});
}

TEST(who_asked_to_verify_holds_nothing_afterwards) {
  SegmentStore store(small_store());
  const Keys keys({"a"});
  CHECK_EQ(put_one(store, "a", 1000), Status::kOk);
  CHECK(store.verify(keys.block()) == SegmentStore::Statuses({0}));
  store.remove(keys.block());
  CHECK_EQ(store.stats().at("used_bytes"), uint64_t{0});
}

TEST(a_put_whose_bytes_were_found_wrong_is_dropped_and_counted) {
  SegmentStore store(small_store());
  const Keys keys({"a"});
  const Put put(keys, 1000);
  std::vector<WriteEntry> writes(1);
  store.reserve_writes(put.request(), 0, 1, SegmentStore::Clock::now(), kNever, writes);
  writes[0].digest_refused = true;
  CHECK_EQ(store.seal_writes(put.request(), writes), uint64_t{0});
  CHECK_EQ(writes[0].status, Status::kDigestMismatch);
  CHECK_EQ(get_one(store, "a"), Status::kMiss);
  CHECK_EQ(store.stats().at("used_bytes"), uint64_t{0});
  CHECK_EQ(store.stats().at("digest_mismatches"), uint64_t{1});
}

TEST(a_healthy_object_survives_suspicion_and_a_damaged_one_is_quarantined) {
  SegmentStore store(small_store());
  put_one(store, "good", 5000);
  put_one(store, "bad", 5000);
  const Keys bad({"bad"});
  const auto reads = store.acquire_reads(bad.block(), nullptr);
  const_cast<uint8_t*>(reads[0].data)[4999] ^= 0x10;
  store.release_reads(reads);
  const Keys both({"good", "bad", "absent"});
  CHECK(store.verify(both.block()) == SegmentStore::Statuses({0, 5, 1}));
  CHECK_EQ(get_one(store, "good"), Status::kOk);
  CHECK_EQ(get_one(store, "bad"), Status::kMiss);
  CHECK_EQ(store.stats().at("quarantined_slots"), uint64_t{1});
  CHECK_EQ(store.stats().at("digest_mismatches"), uint64_t{1});
  CHECK_EQ(store.journal().last_seq(), uint64_t{3});
  CHECK_EQ(put_one(store, "bad", 5000), Status::kOk);  // elsewhere
  CHECK_EQ(get_one(store, "bad"), Status::kOk);
}

TEST(abandoned_writes_leave_nothing_behind) {
  SegmentStore store(small_store());
  const Keys keys({"a", "b"});
  const Put put(keys, 4000);
  std::vector<WriteEntry> writes(2);
  store.reserve_writes(put.request(), 0, 2, SegmentStore::Clock::now(), kNever, writes);
  CHECK_EQ(store.stats().at("used_bytes"), 2 * ExtentAllocator::rounded(4000));
  CHECK_EQ(store.stats().at("object_count"), uint64_t{0});
  store.abandon_writes(writes);
  CHECK_EQ(store.stats().at("used_bytes"), uint64_t{0});
  CHECK_EQ(store.journal().last_seq(), uint64_t{0});
}

TEST(the_inventory_is_consistent_with_the_journal_while_objects_come_and_go) {
  SegmentStore store(small_store(2 << 20));
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; !done.load(); ++i) put_one(store, std::to_string(i), 20000);
  });
  for (int round = 0; round < 50; ++round) {
    SegmentStore::Inventory left = store.begin_inventory();
    const uint64_t last_seq = left.last_seq;
    CHECK(last_seq <= store.journal().last_seq());
    for (bool done_too = false; !done_too;) {
      std::vector<uint8_t> chunk;
      done_too = store.inventory_slice(left, 7, chunk);
      CHECK(chunk.size() <= 16 + 7 * 20 && (chunk.empty() || chunk[0] == 1));
    }
    const auto next = store.journal().drain(1000);
    if (next) CHECK_EQ(next->first_seq, last_seq + 1);
  }
  done = true;
  writer.join();
}

TEST(a_closed_store_refuses_writes_and_finds_nothing) {
  SegmentStore store(small_store());
  put_one(store, "a", 100);
  store.close();
  store.close();
  CHECK_EQ(put_one(store, "b", 100), Status::kUnavailable);
  CHECK_EQ(get_one(store, "a"), Status::kMiss);
}

TEST(bad_options_are_named) {
  SegmentStoreOptions options = small_store();
  options.eviction_policy = "none such";
  CHECK_THROWS(SegmentStore{options}, std::invalid_argument);
  options = small_store();
  options.free_ahead_bytes = options.capacity_bytes;
  CHECK_THROWS(SegmentStore{options}, std::invalid_argument);
  options = small_store(0);
  CHECK_THROWS(SegmentStore{options}, std::invalid_argument);
}

TEST_MAIN()
