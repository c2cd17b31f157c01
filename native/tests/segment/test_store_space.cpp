// How a full store makes room: for whom, at whose cost, and for how long a put waits.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "segment/object_fixture.hpp"
#include "segment/segment_store.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Status;

namespace {

constexpr uint64_t kMiB = 1 << 20;

std::vector<std::string> names(const std::string& prefix, int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.push_back(prefix + std::to_string(i));
  return all;
}

// One run of a put batch, whose bytes are content(name).
std::vector<Status> put_run(SegmentStore& store, const std::vector<std::string>& run, uint32_t length,
                            PutBatch* batch, int timeout_ms = 0) {
  const Keys keys(run);
  const Put put(keys, length);
  std::vector<WriteEntry> writes(run.size());
  if (batch != nullptr) batch->begin_put();
  store.reserve_writes(put.request(), 0, static_cast<uint32_t>(run.size()),
                       SegmentStore::Clock::now() + std::chrono::milliseconds(timeout_ms), kNever, writes,
                       batch);
  for (size_t i = 0; i < run.size(); ++i)
    if (writes[i].data != nullptr) {
      const std::vector<uint8_t> bytes = content(run[i], length);
      writes[i].digest = copy_crc32c(0, writes[i].data, bytes.data(), length);
    }
  const uint64_t seq = store.seal_writes(put.request(), writes);
  if (batch != nullptr) batch->end_put(seq);
  std::vector<Status> statuses;
  for (const WriteEntry& write : writes) statuses.push_back(write.status);
  return statuses;
}

}  // namespace

TEST(a_batch_that_does_not_fit_is_refused_at_its_end_and_loses_nothing_of_its_beginning) {
  SegmentStore store(small_store(2 * kMiB));
  for (const std::string& name : names("old ", 400)) put_one(store, name, 5000);
  PutBatch batch(store);
  std::vector<std::string> stored;
  bool refused = false;
  for (int run = 0; run < 20; ++run) {
    const std::vector<std::string> run_names = names("run " + std::to_string(run) + " ", 40);
    const std::vector<Status> statuses =
        put_run(store, run_names, 5000, &batch, 60000);  // never waits so long
    for (size_t i = 0; i < statuses.size(); ++i) {
      if (statuses[i] == Status::kOk) stored.push_back(run_names[i]);
      refused |= statuses[i] == Status::kNoSpace;
    }
  }
  CHECK(refused);
  CHECK(stored.size() * ExtentAllocator::rounded(5000) > 2 * kMiB / 100 * 95);
  for (const std::string& name : stored) CHECK_EQ(get_one(store, name), Status::kOk);
  for (const std::string& name : names("old ", 400)) CHECK_EQ(get_one(store, name), Status::kMiss);
  batch.end();
  CHECK_EQ(put_one(store, "next", 5000), Status::kOk);
}

TEST(what_a_batch_was_told_to_be_there_stays_until_the_batch_is_over) {
  SegmentStoreOptions options = small_store(kMiB);
  options.free_ahead_bytes = 0;
  SegmentStore store(options);
  for (const std::string& name : names("there ", 100)) CHECK_EQ(put_one(store, name, 5000), Status::kOk);
  PutBatch batch(store);
  for (const Status status : put_run(store, names("there ", 100), 5000, &batch))
    CHECK_EQ(status, Status::kExists);
  put_run(store, names("new ", 300), 5000, &batch);
  for (const std::string& name : names("there ", 100)) CHECK_EQ(get_one(store, name), Status::kOk);
  batch.end();
  put_run(store, names("newer ", 300), 5000, nullptr);
  CHECK_EQ(get_one(store, "there 0"), Status::kMiss);
}

TEST(runs_of_an_open_batch_survive_the_puts_of_others_and_those_wait_for_its_end) {
  SegmentStoreOptions options = small_store(kMiB);
  options.free_ahead_bytes = 0;
  SegmentStore store(options);
  PutBatch batch(store);
  std::vector<Status> statuses = put_run(store, names("mine ", 150), 5000, &batch);
  for (const Status status : statuses) CHECK_EQ(status, Status::kOk);
  put_run(store, names("theirs ", 100), 5000, nullptr);
  for (const std::string& name : names("mine ", 150)) CHECK_EQ(get_one(store, name), Status::kOk);
  CHECK_EQ(put_one(store, "large", 600000, kNs, 20), Status::kNoSpace);
  std::thread writer([&] { CHECK_EQ(put_one(store, "large", 600000, kNs, 60000), Status::kOk); });
  batch.end();
  writer.join();
  CHECK_EQ(get_one(store, "large"), Status::kOk);
}

TEST(a_put_for_which_there_is_no_slot_waits_for_the_end_of_a_batch_of_others) {
  SegmentStoreOptions options = small_store(kMiB);
  options.free_ahead_bytes = 0;
  SegmentStore store(options);
  PutBatch batch(store);
  int stored = 0;  // as small as can be: slots run short before bytes do
  while (put_run(store, names("mine " + std::to_string(stored) + " ", 1), 1, &batch)[0] == Status::kOk)
    ++stored;
  CHECK(stored > 0);
  std::thread writer([&] { CHECK_EQ(put_one(store, "theirs", 1, kNs, 60000), Status::kOk); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // mostly it waits by then
  batch.end();
  writer.join();
}

TEST(batches_that_wait_for_each_other_are_refused_long_before_their_deadline) {
  SegmentStore store(small_store(kMiB));
  PutBatch one(store), other(store);
  put_run(store, names("one ", 90), 5000, &one);
  put_run(store, names("other ", 90), 5000, &other);
  const auto deadline = SegmentStore::Clock::now() + std::chrono::minutes(10);
  std::thread first([&] { put_run(store, names("more of one ", 90), 5000, &one, 600000); });
  put_run(store, names("more of the other ", 90), 5000, &other, 600000);
  first.join();
  CHECK(SegmentStore::Clock::now() < deadline);
  for (const std::string& name : names("one ", 90)) CHECK_EQ(get_one(store, name), Status::kOk);
  for (const std::string& name : names("other ", 90)) CHECK_EQ(get_one(store, name), Status::kOk);
  CHECK(store.stats().at("no_space") > 0);
}

TEST(a_batch_that_is_never_committed_keeps_its_share_and_no_more) {
  SegmentStoreOptions options = small_store(4 * kMiB);
  options.free_ahead_bytes = 0;
  options.budgets.writing_bytes_max = kMiB;
  SegmentStore store(options);
  PutBatch batch(store);
  for (int run = 0; run < 10; ++run)
    put_run(store, names("run " + std::to_string(run) + " ", 80), 5000, &batch);
  CHECK_EQ(put_one(store, "large", kMiB, kNs, 60000), Status::kOk);
  for (const std::string& name : names("run 0 ", 80)) CHECK_EQ(get_one(store, name), Status::kOk);
}

TEST(a_commit_that_covers_a_batch_ends_it_whoever_asks_for_it) {
  SegmentStoreOptions options = small_store(kMiB);
  options.free_ahead_bytes = 0;
  SegmentStore store(options);
  PutBatch batch(store);
  put_run(store, names("mine ", 200), 5000, &batch);
  const uint64_t seq = store.journal().last_seq();
  store.end_batches_up_to(seq - 1);
  CHECK_EQ(put_one(store, "large", 900000, kNs, 0), Status::kNoSpace);
  CHECK(!batch.is_committed_later());
  store.end_batches_up_to(seq);
  CHECK_EQ(put_one(store, "large", 900000, kNs, 0), Status::kOk);
  put_run(store, {"next run"}, 100, &batch);
  CHECK(batch.is_committed_later());
}

TEST(a_large_put_evicts_one_window_and_one_that_finds_none_evicts_nothing) {
  SegmentStoreOptions options = small_store(16 * kMiB);
  options.free_ahead_bytes = 0;
  options.pinned_fraction_max = 1;
  SegmentStore store(options);
  std::vector<std::string> all = names("page ", 3900);
  for (const std::string& name : all) CHECK_EQ(put_one(store, name, 4096), Status::kOk);
  const uint64_t evicted_before = store.stats().at("evicted_objects");
  CHECK_EQ(put_one(store, "large", 4 * kMiB), Status::kOk);
  const uint64_t evicted = store.stats().at("evicted_objects") - evicted_before;
  CHECK(evicted >= 4 * kMiB / 4096 - 200);
  CHECK(evicted <= 3 * (4 * kMiB / 4096));
  // Every third one is pinned: no 4 MiB are to be had, and nothing is given up for them but once what they take.
  std::vector<std::string> pinned;
  for (size_t i = 0; i < all.size(); i += 3) pinned.push_back(all[i]);
  const auto there = store.pin(Keys(pinned).block(), 60000);
  const uint64_t count = store.stats().at("object_count");
  for (int i = 0; i < 20; ++i)
    CHECK_EQ(put_one(store, "huge " + std::to_string(i), 6 * kMiB, kNs, 0), Status::kNoSpace);
  CHECK(store.stats().at("object_count") >= count - 6 * kMiB / 4096 - 1);
  for (size_t i = 0; i < pinned.size(); ++i)
    if (there[i] == 0) CHECK_EQ(get_one(store, pinned[i]), Status::kOk);
}

TEST(a_put_that_waits_is_woken_by_a_pin_that_runs_out) {
  SegmentStoreOptions options = small_store(kMiB);
  options.pinned_fraction_max = 1;
  SegmentStore store(options);
  CHECK_EQ(put_one(store, "old", 900000), Status::kOk);
  CHECK_EQ(store.pin(Keys({"old"}).block(), 300)[0], static_cast<uint8_t>(Status::kOk));
  CHECK_EQ(put_one(store, "new", 900000, kNs, 60000), Status::kOk);
  CHECK_EQ(get_one(store, "old"), Status::kMiss);
}

TEST(objects_of_very_different_sizes_fill_the_pool_three_times_over_and_none_is_refused) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  constexpr uint64_t kCapacity = 64 * kMiB;
  SegmentStore store(small_store(kCapacity));
  std::vector<uint8_t> bytes(4 * kMiB, 7);
  uint64_t put_bytes = 0, refused = 0, used_bytes = 0, looks = 0;
  for (int i = 0; put_bytes < 3 * kCapacity; ++i) {
    // Evenly over the orders of magnitude from 200 B to 4 MiB.
    const auto length =
        static_cast<uint32_t>(200.0 * std::pow(4.0 * kMiB / 200, double(rng()) / double(rng.max())));
    const Keys keys({"object " + std::to_string(i)});
    const Put put(keys, length);
    std::vector<WriteEntry> writes(1);
    store.reserve_writes(put.request(), 0, 1, SegmentStore::Clock::now() + std::chrono::seconds(60), kNever,
                         writes);
    refused += writes[0].status != Status::kOk;
    store.seal_writes(put.request(), writes);
    put_bytes += length;
    if (put_bytes < 2 * kCapacity) continue;
    used_bytes +=
        store.stats().at("used_bytes");  // little at times: a window of 4 MiB has just been made free
    ++looks;
  }
  CHECK_EQ(refused, uint64_t{0});
  CHECK(used_bytes / looks >= kCapacity / 100 * 95);
  CHECK_EQ(store.stats().at("bookkeeping_errors"), uint64_t{0});
}

TEST(very_small_objects_after_large_ones_get_as_many_slots_as_they_need) {
  constexpr uint64_t kCapacity = 16 * kMiB;
  SegmentStore store(small_store(kCapacity));
  for (const std::string& name : names("large ", 40)) CHECK_EQ(put_one(store, name, kMiB / 2), Status::kOk);
  constexpr int kSmall = 30000;  // over seven times what the first chunk has slots for
  for (int i = 0; i < kSmall; i += 100) {
    std::vector<std::string> run;
    for (int k = i; k < i + 100; ++k) run.push_back("small " + std::to_string(k));
    for (const Status status : put_run(store, run, 200, nullptr, 60000)) CHECK_EQ(status, Status::kOk);
  }
  for (int i = 0; i < kSmall; i += 37) CHECK_EQ(get_one(store, "small " + std::to_string(i)), Status::kOk);
  CHECK(store.stats().at("slots") >= uint64_t{kSmall});
  for (const std::string& name : names("pages ", 700)) CHECK_EQ(put_one(store, name, 65536), Status::kOk);
  CHECK(store.stats().at("slots") < uint64_t{kSmall} / 2);  // and gives them back
}

TEST_MAIN()
