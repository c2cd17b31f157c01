#include <algorithm>
#include <map>
#include <random>

#include "check.hpp"
#include "protocol/keyed_hash.hpp"

using namespace kvstore;

namespace {

// Fingerprints as somebody would choose them who aims at one place of a table.
std::vector<std::vector<Fingerprint>> aimed(uint64_t count) {
  std::vector<std::vector<Fingerprint>> sets(5);
  for (uint64_t i = 0; i < count; ++i) {
    sets[0].push_back({0, i});
    sets[1].push_back({i, 0});
    sets[2].push_back({i << 40, i});
    sets[3].push_back({i, i});
    sets[4].push_back({i, i << 32 | i >> 32});
  }
  return sets;
}

}  // namespace

TEST(chosen_fingerprints_spread_as_random_ones_do) {
  constexpr uint64_t kCount = 1 << 16, kPlaces = 1 << 12;
  for (uint64_t seed : {1u, 2u, 3u}) {
    const KeyedHash hash(seed);
    for (const auto& set : aimed(kCount))
      for (int shift : {0, 32, 52}) {
        std::vector<uint32_t> hits(kPlaces);
        for (const Fingerprint& f : set) ++hits[hash(f) >> shift & (kPlaces - 1)];
        // 16 on average; of 4,096 binomial ones the fullest has 34 or so.
        CHECK(*std::max_element(hits.begin(), hits.end()) < 64);
      }
  }
}

TEST(two_hashes_place_the_same_fingerprints_differently) {
  const KeyedHash one, other, again(7), same(7);
  int agree = 0;
  for (uint64_t i = 0; i < 4096; ++i) {
    agree += (one({i, 0}) & 0xFFF) == (other({i, 0}) & 0xFFF);
    CHECK_EQ(again({i, 0}), same({i, 0}));
  }
  CHECK(agree < 32);
}

TEST_MAIN()
