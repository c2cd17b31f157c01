// Quotas as writers meet them: who makes room for whom, and what is refused.
#include <atomic>
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
constexpr uint32_t kPage = 5000;
constexpr NamespaceId kGreedy{1}, kModest{2};

std::string page(int i) { return "page " + std::to_string(i); }

int there(SegmentStore& store, const NamespaceId& ns, int first, int end) {
  int found = 0;
  for (int i = first; i < end; ++i) found += get_one(store, page(i), ns) == Status::kOk;
  return found;
}

}  // namespace

TEST(a_full_pool_makes_room_for_a_tenant_at_its_quota_of_its_own_pages_alone) {
  SegmentStoreOptions options = small_store(kMiB);
  options.free_ahead_bytes = 0;
  SegmentStore store(options);
  store.set_quotas({{20 * kPage, {kGreedy}}});
  for (int i = 0; i < 150; ++i) CHECK_EQ(put_one(store, page(i), kPage, kModest), Status::kOk);
  for (int i = 0; i < 500; ++i) CHECK_EQ(put_one(store, page(i), kPage, kGreedy), Status::kOk);
  CHECK_EQ(there(store, kGreedy, 0, 500), 20);
  CHECK_EQ(there(store, kGreedy, 480, 500), 20);
  CHECK_EQ(there(store, kModest, 0, 150), 150);
  const auto stats = store.stats();
  CHECK_EQ(stats.at("quota_evicted_objects"), uint64_t{480});
  CHECK_EQ(stats.at("evicted_objects"), uint64_t{0});
  CHECK_EQ(stats.at("quota_limits"), uint64_t{1});
}

TEST(the_evictor_brings_a_tenant_down_to_a_quota_that_is_set_later) {
  SegmentStore store(small_store(kMiB));
  for (int i = 0; i < 50; ++i) put_one(store, page(i), kPage, kGreedy);
  for (int i = 0; i < 50; ++i) put_one(store, page(i), kPage, kModest);
  store.set_quotas({{10 * kPage, {kGreedy}}});
  const auto until = SegmentStore::Clock::now() + std::chrono::seconds(20);
  while (store.stats().at("quota_evicted_objects") < 40 && SegmentStore::Clock::now() < until)
    std::this_thread::yield();
  CHECK_EQ(there(store, kGreedy, 40, 50), 10);
  CHECK_EQ(there(store, kModest, 0, 50), 50);
}

TEST(what_an_own_open_batch_leaves_no_room_for_is_refused_at_once_and_counted) {
  SegmentStore store(small_store(kMiB));
  store.set_quotas({{10 * kPage, {kGreedy}}});
  std::vector<std::string> pages;
  for (int i = 0; i < 15; ++i) pages.push_back(page(i));
  const Keys keys(pages, kGreedy);
  const Put put(keys, kPage);
  std::vector<WriteEntry> writes(pages.size());
  PutBatch batch(store);
  batch.begin_put();
  const auto began = SegmentStore::Clock::now();
  store.reserve_writes(put.request(), 0, static_cast<uint32_t>(pages.size()), began + std::chrono::minutes(5),
                       kNever, writes, &batch);
  CHECK(SegmentStore::Clock::now() - began < std::chrono::minutes(1));
  int reserved = 0, refused = 0;
  for (const WriteEntry& write : writes) {
    reserved += write.status == Status::kOk;
    refused += write.status == Status::kNoSpace;
  }
  CHECK_EQ(reserved, 10);
  CHECK_EQ(refused, 5);
  CHECK_EQ(store.stats().at("quota_refused"), uint64_t{5});
  store.abandon_writes(writes);
  batch.end();
  CHECK_EQ(put_one(store, page(20), kPage, kGreedy), Status::kOk);
  CHECK_EQ(put_one(store, page(21), 11 * kPage, kGreedy), Status::kNoSpace);  // larger than the quota
  CHECK_EQ(get_one(store, page(20), kGreedy), Status::kOk);                   // and nothing goes for it
}

TEST(writers_readers_and_changing_quotas_leave_the_books_in_order) {
  SegmentStore store(small_store(kMiB));
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (const NamespaceId& ns : {kGreedy, kModest})
    threads.emplace_back([&store, ns] {
      for (int i = 0; i < 3000; ++i) {
        put_one(store, page(i), kPage, ns, 0);
        get_one(store, page(i / 2), ns);
      }
    });
  threads.emplace_back([&] {
    for (uint64_t i = 0; !over.load(); ++i) {
      store.set_quotas({{(i % 40) * kPage, {kGreedy}}, {(i % 70) * kPage, {kGreedy, kModest}}});
      std::this_thread::yield();
    }
  });
  threads[0].join();
  threads[1].join();
  over.store(true);
  threads[2].join();
  store.set_quotas({{0, {kGreedy, kModest}}});
  const auto until = SegmentStore::Clock::now() + std::chrono::seconds(20);
  while (store.stats().at("object_count") > 0 && SegmentStore::Clock::now() < until)
    std::this_thread::yield();
  const auto stats = store.stats();
  CHECK_EQ(stats.at("object_count"), uint64_t{0});
  CHECK_EQ(stats.at("bookkeeping_errors"), uint64_t{0});
  CHECK_EQ(stats.at("evictor_errors"), uint64_t{0});
}

TEST_MAIN()
