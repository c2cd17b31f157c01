#include <algorithm>
#include <cstring>
#include <random>
#include <system_error>
#include <vector>

#include "base/digest.hpp"
#include "check.hpp"
#include "segment/pool_scan.hpp"

using namespace kvstore;

namespace {

constexpr uint32_t kSlots = 16;
constexpr uint64_t kFirstChunkBytes = (kSlots + 1) * sizeof(SlotHeader);
constexpr uint64_t kDataOffset = 8192;
constexpr uint64_t kCapacity = 1u << 20;
constexpr uint32_t kLength = 3000;

Key key(uint8_t number) { return {{1}, 2, kWholeShard, {number, 9}}; }

Fingerprint fp_of(uint8_t number) {
  const Key k = key(number);
  return fingerprint(fingerprint_salt(k.ns, k.pool, k.shard), k.hash.data());
}

JournalEntry entry(uint8_t number, JournalOp op) { return {fp_of(number), {1}, kLength, op}; }

// A pool as an earlier process has left it. The objects' bytes follow from their number.
struct LeftPool {
  std::vector<uint8_t> map = std::vector<uint8_t>(kDataOffset + kCapacity);
  SlotTable slots{map.data(), kFirstChunkBytes, 1, false};
  ScanOptions options;

  LeftPool() {
    options.data_offset = kDataOffset;
    options.capacity_bytes = kCapacity;
    options.last_seq = 100;
  }
  // Slots are numbered from 0 here; place 0 of a chunk is none.
  SlotHeader& header(uint32_t slot) { return const_cast<SlotHeader&>(slots.header(slot + 1)); }
  uint8_t* data(uint32_t slot) { return map.data() + header(slot).offset; }
  void write(uint32_t slot, uint8_t number) {
    const uint64_t offset = kDataOffset + slot * 4096;
    CHECK(slots.begin_write(slot + 1, key(number), offset, kLength, 0, 0));
    std::mt19937 bytes(number);
    for (uint32_t i = 0; i < kLength; ++i) map[offset + i] = static_cast<uint8_t>(bytes());
  }
  void seal(uint32_t slot, uint8_t number, uint64_t seq) {
    write(slot, number);
    CHECK(slots.seal(slot + 1, kDigestCrc32c, crc32c(0, data(slot), kLength), seq));
  }
  // The ring said this after the objects' ADDs.
  void journalled(std::vector<JournalEntry> newest) { options.newest_entries = std::move(newest); }
  PoolScan scan() const { return scan_pool(map.data(), {{0, kSlots, &slots.header(1)}}, options); }
};

std::vector<uint32_t> slots_of(const PoolScan& scan) {
  std::vector<uint32_t> slots;
  for (const PoolScan::Object& object : scan.objects) slots.push_back(object.slot);
  return slots;
}

bool removes(const PoolScan& scan, std::vector<uint8_t> numbers) {
  if (scan.removals.size() != numbers.size()) return false;
  return std::all_of(numbers.begin(), numbers.end(), [&](uint8_t number) {
    return std::any_of(scan.removals.begin(), scan.removals.end(), [&](const JournalEntry& e) {
      return e.op == JournalOp::kRemove && e.fp == fp_of(number) && e.ns == NamespaceId{1};
    });
  });
}

}  // namespace

TEST(sealed_objects_are_found_with_their_numbers_the_oldest_first) {
  LeftPool pool;
  pool.seal(0, 1, 30);
  pool.seal(1, 2, 101);
  pool.seal(2, 3, 10);
  const PoolScan scan = pool.scan();
  CHECK(slots_of(scan) == (std::vector<uint32_t>{2, 0, 1}));
  CHECK(scan.objects[0].fp == fp_of(3) && scan.objects[0].seq == 10 && scan.objects[2].seq == 101);
  CHECK_EQ(scan.scanned_bytes, uint64_t{3 * kLength});
  CHECK_EQ(scan.object_bytes, uint64_t{3 * kLength});
  CHECK(scan.removals.empty() && !scan.needs_inventory);
}

TEST(what_was_being_written_is_not_served_and_nobody_has_to_hear_of_it) {
  LeftPool pool;
  pool.write(0, 1);
  const PoolScan scan = pool.scan();
  CHECK(scan.objects.empty() && scan.removals.empty() && !scan.needs_inventory);
  CHECK_EQ(scan.dropped[PoolScan::kWriting], uint64_t{1});
}

TEST(a_header_in_the_middle_of_a_change_is_not_served_and_its_removal_is_told) {
  LeftPool pool;
  pool.seal(0, 1, 5);
  pool.header(0).generation.fetch_add(1);
  const PoolScan scan = pool.scan();
  CHECK(scan.objects.empty() && removes(scan, {1}));
  CHECK_EQ(scan.dropped[PoolScan::kChanging], uint64_t{1});
}

TEST(what_was_removed_under_a_reader_or_quarantined_is_not_served) {
  LeftPool pool;
  pool.seal(0, 1, 5);
  pool.header(0).removed = 1;
  pool.seal(1, 2, 6);
  CHECK(pool.slots.quarantine(2));
  pool.seal(2, 3, 7);
  pool.slots.condemn(3);
  const PoolScan scan = pool.scan();
  CHECK(scan.objects.empty() && removes(scan, {1, 2, 3}));
}

TEST(an_object_whose_removal_is_journalled_already_goes_and_one_that_came_again_stays) {
  LeftPool pool;
  pool.seal(0, 1, 98);
  pool.seal(1, 2, 101);
  pool.seal(2, 3, 100);
  pool.journalled({entry(3, JournalOp::kRemove), entry(1, JournalOp::kRemove), entry(3, JournalOp::kAdd)});
  PoolScan scan = pool.scan();
  CHECK(slots_of(scan) == (std::vector<uint32_t>{2, 1}) && removes(scan, {1}));
  // The REMOVE is of one before it, whose ADD the journal has not got.
  pool.journalled({entry(2, JournalOp::kRemove)});
  scan = pool.scan();
  CHECK_EQ(scan.objects.size(), size_t{3});
}

TEST(a_removal_is_not_told_of_what_is_there_in_another_slot) {
  LeftPool pool;
  pool.seal(0, 1, 5);
  pool.header(0).removed = 1;
  pool.seal(1, 1, 9);
  const PoolScan scan = pool.scan();
  CHECK(slots_of(scan) == std::vector<uint32_t>{1} && scan.removals.empty());
}

TEST(of_two_with_one_fingerprint_the_newer_one_stays) {
  LeftPool pool;
  pool.seal(0, 1, 9);
  pool.seal(1, 1, 5);
  CHECK(slots_of(pool.scan()) == std::vector<uint32_t>{0});
}

TEST(an_object_outside_of_the_pool_is_not_read) {
  for (const uint64_t offset : {uint64_t{0}, kDataOffset - 64, kDataOffset + 1, kDataOffset + kCapacity - 64,
                                kDataOffset + kCapacity + 64, ~uint64_t{63}}) {
    LeftPool pool;
    pool.seal(0, 1, 5);
    SlotHeader& h = pool.header(0);
    h.offset = offset;
    h.check = h.check_at(h.generation.load());
    const PoolScan scan = pool.scan();
    CHECK(scan.objects.empty() && removes(scan, {1}));
    CHECK_EQ(scan.dropped[PoolScan::kMisplaced], uint64_t{1});
  }
}

TEST(one_flipped_bit_of_a_header_is_never_served_as_something_else) {
  for (uint32_t bit = 0; bit < offsetof(SlotHeader, removed) * 8; ++bit) {
    LeftPool pool;
    pool.seal(0, 1, 5);
    pool.seal(1, 2, 6);
    reinterpret_cast<uint8_t*>(&pool.header(0))[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    const PoolScan scan = pool.scan();
    CHECK(slots_of(scan) == std::vector<uint32_t>{1});
    CHECK(scan.needs_inventory || removes(scan, {1}));
  }
}

TEST(one_flipped_bit_of_an_object_is_found_unless_nobody_looks) {
  for (const uint32_t at : {0u, kLength / 2, kLength - 1}) {
    LeftPool pool;
    pool.seal(0, 1, 5);
    pool.seal(1, 2, 6);
    pool.data(0)[at] ^= 1;
    PoolScan scan = pool.scan();
    CHECK(slots_of(scan) == std::vector<uint32_t>{1} && removes(scan, {1}));
    CHECK_EQ(scan.dropped[PoolScan::kBadBytes], uint64_t{1});
    pool.options.verify_digests = false;
    scan = pool.scan();
    CHECK_EQ(scan.objects.size(), size_t{2});
    CHECK_EQ(scan.scanned_bytes, uint64_t{0});
  }
}

TEST(a_scan_that_is_called_off_has_no_result) {
  LeftPool pool;
  pool.seal(0, 1, 5);
  PoolProgress progress;
  progress.cancelled = true;
  pool.options.progress = &progress;
  CHECK_THROWS(pool.scan(), std::system_error);
}

TEST(many_threads_find_what_one_finds) {
  LeftPool pool;
  for (uint8_t slot = 0; slot < kSlots; ++slot) pool.seal(slot, slot, 50 + slot);
  const auto headers = [&](uint32_t first) { return &pool.slots.header(first + 1); };
  std::vector<ScannedChunk> chunks;
  for (uint32_t first = 0; first < kSlots; first += 4) chunks.push_back({first, 4, headers(first)});
  for (const unsigned threads : {1u, 2u, 7u, 64u}) {
    pool.options.threads = threads;
    const PoolScan scan = scan_pool(pool.map.data(), chunks, pool.options);
    CHECK_EQ(scan.objects.size(), size_t{kSlots});
    for (uint32_t i = 0; i < scan.objects.size(); ++i) CHECK_EQ(scan.objects[i].slot, i);
  }
}

TEST_MAIN()
