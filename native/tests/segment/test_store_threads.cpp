// Writers, readers, pinners, removers and eviction at once: whatever they do, the books agree at the end.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
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

constexpr int kNames = 600;
constexpr int kRounds = 1500;

std::string name_of(unsigned i) { return "object " + std::to_string(i % kNames); }
uint32_t length_of(const std::string& name) {
  return static_cast<uint32_t>(100 + std::hash<std::string>{}(name) % 9000);
}

// What the journal says is there.
std::set<std::pair<uint64_t, uint64_t>> journalled(SegmentStore& store) {
  std::set<std::pair<uint64_t, uint64_t>> there;
  while (const auto batch = store.journal().drain(100000)) {
    wire::Reader reader(batch->groups.data(), batch->groups.size());
    while (reader.left() > 0) {
      const auto op = static_cast<JournalOp>(reader.u8("op"));
      reader.bytes(3, "reserved");
      const uint32_t count = reader.u32("count");
      reader.bytes(kNamespaceBytes, "ns");
      for (uint32_t i = 0; i < count; ++i) {
        Fingerprint fp;
        std::memcpy(&fp, reader.bytes(sizeof(fp), "fingerprint"), sizeof(fp));
        // An ADD of what is there, or a REMOVE of what is not, would be an entry out of order.
        if (op == JournalOp::kAdd)
          CHECK(there.insert({fp.lo, fp.hi}).second);
        else
          CHECK_EQ(there.erase({fp.lo, fp.hi}), size_t{1});
      }
      reader.bytes(size_t{count} * 4, "lengths");
    }
  }
  return there;
}

}  // namespace

TEST(all_that_can_be_done_to_a_store_at_once_leaves_its_books_in_order) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  SegmentStoreOptions options = small_store(1 << 20);  // a third of all objects
  options.pinned_fraction_max = 0.2;
  SegmentStore store(options);
  std::atomic<int> wrong{0}, hits{0};
  std::vector<std::thread> threads;
  const auto work = [&](unsigned number, auto&& body) {
    threads.emplace_back([&, number, body] {
      std::mt19937 rng(seed + number);
      for (int round = 0; round < kRounds; ++round) body(rng);
    });
  };
  for (unsigned writer = 0; writer < 2; ++writer)
    work(writer, [&](std::mt19937& rng) {
      const std::string name = name_of(rng());
      const Status status = put_one(store, name, length_of(name));
      wrong += status != Status::kOk && status != Status::kExists;
    });
  for (unsigned reader = 2; reader < 4; ++reader)
    work(reader, [&](std::mt19937& rng) {
      std::vector<std::string> batch;
      const unsigned first = rng();
      for (unsigned i = 0; i < 16; ++i) batch.push_back(name_of(first + i));
      const Keys keys(batch);
      const std::vector<ReadEntry> reads = store.acquire_reads(keys.block(), nullptr);
      for (size_t i = 0; i < reads.size(); ++i) {
        if (reads[i].status != Status::kOk) continue;
        ++hits;
        const std::vector<uint8_t> expected = content(batch[i], length_of(batch[i]));
        wrong += reads[i].length != expected.size() ||
                 std::memcmp(reads[i].data, expected.data(), expected.size()) != 0;
      }
      store.release_reads(reads);
    });
  work(4, [&](std::mt19937& rng) {
    const Keys keys({name_of(rng()), name_of(rng())});
    if (rng() % 2 == 0)
      store.pin(keys.block(), 1 + rng() % 20);
    else
      store.remove(keys.block());
  });
  work(5, [&](std::mt19937& rng) {
    if (rng() % 8 == 0) store.evict_bytes(1 + rng() % 50000);
    if (rng() % 64 == 0) put_one(store, "large " + std::to_string(rng()), 100000 + rng() % 200000);
    store.verify(Keys({name_of(rng())}).block());
    store.stats();
  });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK(hits.load() > 0);
  store.close();

  const auto stats = store.stats();
  CHECK_EQ(stats.at("bookkeeping_errors"), uint64_t{0});
  CHECK_EQ(stats.at("damaged_slots"), uint64_t{0});
  CHECK_EQ(stats.at("quarantined_slots"), uint64_t{0});
  // An inventory, which says what is there, is what the journal has said all along.
  std::vector<uint8_t> groups;
  const auto there = journalled(store);
  SegmentStore::Inventory left = store.begin_inventory();
  while (!store.inventory_slice(left, 100000, groups)) {
  }
  wire::Reader reader(groups.data(), groups.size());
  size_t listed = 0;
  uint64_t bytes = 0;
  while (reader.left() > 0) {
    reader.bytes(4, "op");
    const uint32_t count = reader.u32("count");
    reader.bytes(kNamespaceBytes, "ns");
    for (uint32_t i = 0; i < count; ++i) {
      Fingerprint fp;
      std::memcpy(&fp, reader.bytes(sizeof(fp), "fingerprint"), sizeof(fp));
      CHECK_EQ(there.count({fp.lo, fp.hi}), size_t{1});
    }
    const uint8_t* lengths = reader.bytes(size_t{count} * 4, "lengths");
    for (uint32_t i = 0; i < count; ++i) bytes += ExtentAllocator::rounded(wire::u32_at(lengths, i));
    listed += count;
  }
  CHECK_EQ(listed, there.size());
  CHECK_EQ(uint64_t{listed}, stats.at("object_count"));
  // All the memory in use is theirs, or that of slot headers.
  const uint64_t chunk_bytes = (stats.at("slots") + 64) * sizeof(SlotHeader);
  CHECK(stats.at("used_bytes") >= bytes && stats.at("used_bytes") <= bytes + chunk_bytes);
}

TEST_MAIN()
