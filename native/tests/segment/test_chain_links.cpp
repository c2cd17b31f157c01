// Which page hangs on which, as seen from the order in which pages come and are used.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"
#include "segment/chain_links.hpp"

using namespace kvstore;

namespace {

constexpr uint32_t kPlaces = 200;

struct Links {
  explicit Links(uint32_t chunks = 1) : links(new ChainLinks(chunks)) {
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) links->add_chunk(chunk, kPlaces);
  }
  void came(uint32_t slot, uint32_t depth, uint8_t ns = 1, uint8_t shard = 0) {
    links->came(slot, {{ns}, 1, {shard}, depth});
  }
  // Pages [first, end) of one chain into slots from `slot` on, as a put request brings them.
  void put(uint32_t slot, uint32_t first, uint32_t end, uint8_t ns = 1) {
    links->begin_request();
    for (uint32_t depth = end; depth-- > first;) came(slot + depth - first, depth, ns);
  }
  std::unique_ptr<ChainLinks> links;
};

}  // namespace

TEST(the_pages_of_a_put_hang_on_each_other_until_they_go) {
  Links t;
  t.put(10, 0, 5);
  for (uint32_t depth = 0; depth < 5; ++depth) {
    CHECK_EQ(t.links->children(10 + depth), depth == 4 ? 0u : 1u);
    CHECK_EQ(t.links->parent(10 + depth), depth == 0 ? kNoSlot : 9 + depth);
  }
  t.links->gone(14);
  CHECK_EQ(t.links->children(13), 0u);
  t.links->gone(11);  // out of the middle: what hung on it hangs on nothing
  CHECK_EQ(t.links->children(10), 0u);
  CHECK_EQ(t.links->parent(12), kNoSlot);
  t.came(11, 7, 2);  // another object in that slot is nobody's parent
  CHECK_EQ(t.links->parent(12), kNoSlot);
  t.links->gone(12);
  CHECK_EQ(t.links->children(11), 0u);
}

TEST(runs_of_a_chain_are_joined_in_whichever_order_they_come) {
  for (const bool tail_first : {false, true}) {
    Links t;
    if (tail_first) t.put(14, 4, 8);
    t.put(10, 0, 4);
    if (!tail_first) t.put(14, 4, 8);
    for (uint32_t depth = 1; depth < 8; ++depth) CHECK_EQ(t.links->parent(10 + depth), 9 + depth);
    CHECK_EQ(t.links->children(17), 0u);
  }
}

TEST(chains_of_other_namespaces_and_shards_in_between_change_nothing) {
  Links t;
  for (uint32_t depth = 6; depth-- > 0;)
    for (const uint8_t shard : {3, 2, 1, 0}) t.came(10 + 10 * shard + depth, depth, 1, shard);
  for (uint32_t slot = 10; slot < 50; slot += 10)
    for (uint32_t depth = 1; depth < 6; ++depth) CHECK_EQ(t.links->parent(slot + depth), slot + depth - 1);
  t.put(60, 0, 3, 1);
  t.put(70, 0, 3, 2);
  t.put(63, 3, 6, 1);
  t.put(73, 3, 6, 2);
  CHECK_EQ(t.links->parent(63), 62u);
  CHECK_EQ(t.links->parent(73), 72u);
}

TEST(a_request_that_ends_where_another_began_is_no_part_of_its_chain) {
  Links t;
  t.put(10, 0, 4);
  t.put(14, 4, 8);
  t.put(30, 0, 4);  // of another chain
  CHECK_EQ(t.links->parent(14), 13u);
  CHECK_EQ(t.links->children(33), 0u);
}

TEST(a_head_that_comes_again_is_found_by_the_use_of_its_chain) {
  Links t;
  t.put(10, 0, 4);
  t.links->gone(11);
  t.put(50, 1, 2);  // the page of depth 1 again
  for (const uint32_t slot : {13u, 12u, 50u, 10u}) t.links->used(slot);
  CHECK_EQ(t.links->parent(12), 50u);
  CHECK_EQ(t.links->parent(50), 10u);
  CHECK_EQ(t.links->children(50), 1u);
  CHECK_EQ(t.links->children(10), 1u);
}

TEST(a_shared_head_has_all_its_branches_as_children) {
  Links t;
  t.put(10, 0, 2);
  t.links->gone(11);
  for (uint32_t branch = 0; branch < 5; ++branch) {
    t.put(20 + branch, 1, 2);
    t.links->used(10);
  }
  CHECK_EQ(t.links->children(10), 5u);
  for (uint32_t branch = 0; branch < 5; ++branch) t.links->gone(20 + branch);
  CHECK_EQ(t.links->children(10), 0u);
}

TEST(whatever_comes_and_goes_children_are_those_that_say_so) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  Links t(4);
  std::map<uint32_t, bool> there;
  for (int step = 0; step < 50'000; ++step) {
    const uint32_t slot = slot_at(rng() % 4, 1 + rng() % (kPlaces - 1));
    if (there.count(slot) == 0) {
      if (rng() % 4 == 0) t.links->begin_request();
      // Depths at both ends of what a peer can say.
      const uint32_t depth = rng() % 50 == 0 ? 0xFFFFFFFFu - rng() % 2 : rng() % 12;
      t.came(slot, depth, static_cast<uint8_t>(rng() % 3));
      there[slot] = true;
    } else if (rng() % 3 == 0) {
      t.links->used(slot);
    } else {
      t.links->gone(slot);
      there.erase(slot);
    }
    if (step % 500 != 0) continue;
    std::map<uint32_t, uint32_t> children;
    for (const auto& [each, _] : there)
      if (t.links->parent(each) != kNoSlot) ++children[t.links->parent(each)];
    for (const auto& [each, _] : there) CHECK_EQ(t.links->children(each), children[each]);
    for (const auto& [parent, _] : children) CHECK(there.count(parent) == 1);
  }
  // A chunk goes with all that is in it, as the table has it.
  for (auto at = there.begin(); at != there.end();) {
    if (chunk_of(at->first) != 2) {
      ++at;
      continue;
    }
    t.links->gone(at->first);
    at = there.erase(at);
  }
  t.links->remove_chunk(2);
  for (const auto& [slot, _] : there) {
    t.links->used(slot);
    CHECK(t.links->parent(slot) == kNoSlot || chunk_of(t.links->parent(slot)) != 2);
  }
}

TEST_MAIN()
