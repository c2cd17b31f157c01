#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "protocol/keyed_hash.hpp"
#include "segment/slot_index.hpp"

using namespace kvstore;

namespace {

// An index with the fingerprints of its slots, under one key.
struct Index {
  explicit Index(uint32_t slots, uint64_t seed = std::random_device{}())
      : hash(seed), fingerprints(slots / kChunkSlots + 1), index(fingerprints) {
    for (uint32_t chunk = 0; chunk <= slots / kChunkSlots; ++chunk) fingerprints.add(chunk, kChunkSlots);
  }
  uint32_t hash_of(const Fingerprint& fp) const { return static_cast<uint32_t>(hash(fp) >> 32); }
  uint32_t find(const Fingerprint& fp) const { return index.find(fp, hash_of(fp)); }
  void insert(const Fingerprint& fp, uint32_t slot) {
    index.reserve_one();
    const Fingerprint before = fingerprints[slot];
    fingerprints[slot] = fp;
    try {
      index.insert(slot, hash_of(fp));
    } catch (...) {
      fingerprints[slot] = before;
      throw;
    }
  }
  bool erase(const Fingerprint& fp) { return index.erase(fp, hash_of(fp)); }
  uint32_t size() const { return index.size(); }

  KeyedHash hash;
  BySlot<Fingerprint> fingerprints;
  SlotIndex index;
};

}  // namespace

TEST(random_traffic_agrees_with_a_map) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  constexpr uint32_t kSlots = 200;
  Index index(kSlots);
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> model;
  std::vector<uint32_t> free_slots;
  for (uint32_t s = 0; s < kSlots; ++s) free_slots.push_back(s);
  for (int step = 0; step < 60000; ++step) {
    // As many keys as the table takes, so that it is full most of the time and probes run into each other.
    const Fingerprint fp{rng() % 12 + (rng() % 4 == 0 ? 500 : 0), (rng() % 8) | (rng() % 3) << 33};
    const auto known = model.find({fp.lo, fp.hi});
    CHECK_EQ(index.find(fp), known == model.end() ? kNoSlot : known->second);
    if (known != model.end()) {
      if (rng() % 3 == 0) {
        CHECK(index.erase(fp));
        free_slots.push_back(known->second);
        model.erase(known);
      } else {
        CHECK_THROWS(index.insert(fp, known->second), std::logic_error);
      }
    } else if (!free_slots.empty()) {
      CHECK(!index.erase(fp));
      index.insert(fp, free_slots.back());
      model[{fp.lo, fp.hi}] = free_slots.back();
      free_slots.pop_back();
    }
    CHECK_EQ(size_t{index.size()}, model.size());
  }
  for (const auto& [key, slot] : model) CHECK_EQ(index.find({key.first, key.second}), slot);
}

TEST(everything_is_found_while_the_index_grows_and_while_it_shrinks) {
  constexpr uint32_t kSlots = 20000;
  Index index(kSlots);
  std::mt19937_64 rng(5);
  std::vector<Fingerprint> fps;
  for (uint32_t i = 0; i < kSlots; ++i) {
    fps.push_back({rng(), rng()});
    index.insert(fps[i], i);
    if (i % 97 == 0)
      for (uint32_t k = 0; k <= i; k += 13) CHECK_EQ(index.find(fps[k]), k);
  }
  for (uint32_t i = 0; i < kSlots; ++i) CHECK_EQ(index.find(fps[i]), i);
  for (uint32_t i = 0; i < kSlots; ++i) {
    CHECK(index.erase(fps[i]));
    CHECK(!index.erase(fps[i]));
    if (i % 97 == 0)
      for (uint32_t k = i + 1; k < kSlots; k += 131) CHECK_EQ(index.find(fps[k]), k);
  }
  CHECK_EQ(index.size(), 0u);
}

TEST(chosen_fingerprints_make_no_long_probes) {
  constexpr uint32_t kSlots = 40000;
  // What would fall into one bucket without a key, and what falls anywhere.
  const auto seconds = [](bool chosen) {
    std::mt19937_64 rng(3);
    Index index(kSlots, 7);
    std::vector<Fingerprint> fps;
    for (uint64_t i = 0; i < kSlots; ++i)
      fps.push_back(chosen ? Fingerprint{0, i << 20} : Fingerprint{rng(), rng()});
    double best = 1e9;
    for (uint32_t i = 0; i < kSlots; ++i) index.insert(fps[i], i);
    for (int round = 0; round < 5; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      for (uint32_t i = 0; i < 1024; ++i) CHECK_EQ(index.find(fps[i * 39]), i * 39);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return best;
  };
  const double random = seconds(false), chosen = seconds(true);
  std::fprintf(stderr, "1,024 finds: %.0f us of random fingerprints, %.0f us of chosen ones\n", random * 1e6,
               chosen * 1e6);
  CHECK(chosen < 30 * random + 1e-4);  // without a key: some hundred times
}

TEST_MAIN()
