#include <cstdio>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "segment/slot_index.hpp"

using namespace kvstore;

TEST(random_traffic_with_colliding_fingerprints_agrees_with_a_map) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  constexpr uint32_t kSlots = 200;
  SlotIndex index(kSlots);
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> model;
  std::vector<uint32_t> free_slots;
  for (uint32_t s = 0; s < kSlots; ++s) free_slots.push_back(s);
  for (int step = 0; step < 60000; ++step) {
    // Few home buckets and few tags: probes run into each other, and tags lie.
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
      CHECK(index.fingerprint(free_slots.back()) == fp);
      model[{fp.lo, fp.hi}] = free_slots.back();
      free_slots.pop_back();
    }
    CHECK_EQ(size_t{index.size()}, model.size());
  }
  for (const auto& [key, slot] : model) CHECK_EQ(index.find({key.first, key.second}), slot);
}

TEST_MAIN()
