#include <algorithm>
#include <map>
#include <random>

#include "check.hpp"
#include "master/fingerprint_table.hpp"

using namespace kvstore;

namespace {

// The table with locations of its own, as the index uses it.
struct Fixture {
  LocationStore locations;
  FingerprintTable table;

  static Fingerprint fp_of(uint32_t tag, uint64_t i) { return {uint64_t{tag} << 32 | 1, i}; }

  void add(uint32_t tag, uint64_t i) {
    locations.reserve(1);
    const uint32_t at = locations.take();
    locations[at].fingerprint = fp_of(tag, i);
    table.fill(table.find(tag, fp_of(tag, i), locations), tag, at);
  }
  uint32_t find(uint32_t tag, uint64_t i) { return table.find(tag, fp_of(tag, i), locations).head; }
};

}  // namespace

TEST(growing_moves_few_slots_at_a_time) {
  constexpr uint64_t kCount = 2000000, kBatch = 1024;
  std::mt19937_64 rng(1);
  FingerprintTable table;
  LocationStore locations;
  uint64_t moved_most = 0, moved = 0;
  for (uint64_t count = 0; count < kCount; count += kBatch) {
    std::vector<uint32_t> tags(kBatch);
    for (uint32_t& tag : tags) tag = static_cast<uint32_t>(rng());
    table.reserve(tags);
    moved_most = std::max(moved_most, table.moved_slots() - moved);
    moved = table.moved_slots();
    locations.reserve(kBatch);
    for (uint32_t tag : tags) {
      const uint32_t at = locations.take();
      locations[at].fingerprint = {tag, count};
      table.fill(table.find(tag, {tag, count}, locations), tag, at);
    }
  }
  std::fprintf(stderr, "most slots moved for %llu entries: %llu, of %llu\n",
               static_cast<unsigned long long>(kBatch), static_cast<unsigned long long>(moved_most),
               static_cast<unsigned long long>(table.size()));
  CHECK(moved_most <= 32 * FingerprintTable::kPartSlots);
  CHECK(moved <= 4 * kCount);  // each slot a few times in all
}

TEST(everything_is_found_through_every_split_and_erasure) {
  std::mt19937_64 rng(2);
  Fixture f;
  std::map<std::pair<uint32_t, uint64_t>, bool> there;
  for (int step = 0; step < 60000; ++step) {
    // Many share a tag, many share a part.
    const uint32_t tag = rng() % 2 ? static_cast<uint32_t>(rng() % 50) << 26 : static_cast<uint32_t>(rng());
    const uint64_t i = rng() % 40;
    bool& known = there[{tag, i}];
    CHECK_EQ(f.find(tag, i) != kNoLocation, known);
    if (!known && rng() % 4 != 0) {
      f.table.reserve({tag});
      f.add(tag, i);
      known = true;
    } else if (known && rng() % 2 == 0) {
      f.table.erase(f.table.find(tag, Fixture::fp_of(tag, i), f.locations));
      known = false;
    }
  }
  uint64_t count = 0;
  for (const auto& [key, known] : there) {
    CHECK_EQ(f.find(key.first, key.second) != kNoLocation, known);
    count += known;
  }
  CHECK_EQ(f.table.size(), count);
}

TEST(fingerprints_that_no_bit_takes_apart_fill_a_part_and_are_then_refused) {
  Fixture f;
  constexpr uint32_t kTag = 0x12345678;
  for (uint64_t i = 0; i < FingerprintTable::kPartSlots - 1; ++i) {
    f.table.reserve({kTag});
    f.add(kTag, i);
  }
  CHECK_THROWS(f.table.reserve({kTag}), std::bad_alloc);
  CHECK_THROWS(f.table.reserve({1, kTag, 2}), std::bad_alloc);
  for (uint64_t i = 0; i < FingerprintTable::kPartSlots - 1; ++i) CHECK(f.find(kTag, i) != kNoLocation);
  f.table.reserve({~kTag});
  f.add(~kTag, 1);
  CHECK(f.find(~kTag, 1) != kNoLocation);
}

TEST_MAIN()
