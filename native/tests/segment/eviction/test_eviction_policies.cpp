// What each policy does, and what all of them have in common.
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "segment/eviction/eviction_policy.hpp"
#include "segment/eviction/policy_fixture.hpp"

using namespace kvstore;
using testing::PlayedCache;

static const std::vector<std::string> kAll = {"adaptive", "interval", "lrfu", "2q", "lru"};
static const std::vector<std::string> kRemembering = {"adaptive", "interval", "lrfu", "2q"};

static std::vector<uint32_t> drained(EvictionPolicy& policy) {
  std::vector<uint32_t> order;
  for (uint32_t slot = policy.coldest(); slot != kNoSlot && order.size() < 10000; slot = policy.coldest()) {
    order.push_back(slot);
    policy.on_evict(slot);
  }
  return order;
}

TEST(lru_gives_up_what_was_used_longest_ago) {
  const auto policy = make_eviction_policy("lru", 4);
  for (uint32_t slot = 0; slot < 4; ++slot) policy->on_insert({slot, slot, 1, 0, Keep::kNormal});
  policy->on_use(0);
  policy->on_remove(3);
  CHECK(drained(*policy) == (std::vector<uint32_t>{1, 2, 0}));
}

TEST(demoted_objects_go_first_and_retained_ones_last) {
  for (const std::string& name : kAll) {
    const auto policy = make_eviction_policy(name, 6);
    policy->on_insert({0, 0, 1, 0, Keep::kRetained});
    for (uint32_t slot = 1; slot < 5; ++slot) policy->on_insert({slot, slot, 1, 0, Keep::kNormal});
    policy->on_insert({5, 5, 1, 0, Keep::kDemoted});
    policy->on_keep(4, Keep::kDemoted);
    policy->on_keep(1, Keep::kRetained);
    policy->on_keep(5, Keep::kNormal);
    policy->on_use(4);
    const std::vector<uint32_t> order = drained(*policy);
    CHECK_EQ(order.size(), size_t{6});
    CHECK_EQ(order.front(), 4u);
    CHECK((std::set<uint32_t>{order[4], order[5]}) == (std::set<uint32_t>{0, 1}));
  }
}

TEST(what_is_retained_outlives_what_was_used_however_often_and_what_is_wanted) {
  for (const std::string& name : kAll) {
    constexpr uint32_t kRoom = 100;
    const auto policy = make_eviction_policy(name, kRoom);
    PlayedCache cache(*policy, kRoom);
    for (uint64_t object = 0; object < 10; ++object) cache.access(object, 0, Keep::kRetained);
    for (uint64_t object = 1000; object < 5000; ++object) {
      cache.access(object, 0, object % 2 == 0 ? Keep::kWanted : Keep::kNormal);
      cache.access(100 + object % 40);
    }
    for (uint64_t object = 0; object < 10; ++object) CHECK(cache.access(object, 0, Keep::kRetained));
  }
}

TEST(what_is_wanted_goes_later_where_the_policy_weighs_it_and_is_as_any_other_where_it_does_not) {
  for (const std::string& name : kAll) {
    const auto policy = make_eviction_policy(name, 6);
    for (uint32_t slot = 0; slot < 6; ++slot)
      policy->on_insert({slot, slot, 1, 0, slot < 3 ? Keep::kWanted : Keep::kNormal});
    const bool is_weighed = name == "interval";  // adaptive believes it only once it has paid
    const uint32_t first = drained(*policy).front();
    CHECK_EQ(first, is_weighed ? 3u : 0u);
  }
}

TEST(of_one_prefix_the_deepest_page_goes_first_however_its_batches_came) {
  for (const std::string& name : kAll) {
    for (const bool head_first : {true, false}) {
      constexpr uint32_t kPages = 12000, kRun = 100;
      const auto policy = make_eviction_policy(name, kPages);
      PlayedCache cache(*policy, kPages);
      for (uint64_t other = 1; other <= 117; ++other) cache.access_prefix(other, 0, 100);
      for (uint32_t run = 0; run < 3; ++run)
        cache.access_prefix(1000, (head_first ? run : 2 - run) * kRun, kRun);
      uint32_t deepest_left = 3 * kRun;
      for (uint32_t left = kPages; left > 0; --left) {
        const uint64_t object = cache.evict();
        if (object >> 20 == 1000) CHECK_EQ(static_cast<uint32_t>(object & 0xFFFFF), --deepest_left);
      }
    }
  }
}

TEST(what_is_spared_is_offered_again_only_when_nothing_else_is_left) {
  for (const std::string& name : kAll) {
    for (const Keep keep : {Keep::kDemoted, Keep::kNormal}) {
      const auto policy = make_eviction_policy(name, 8);
      for (uint32_t slot = 0; slot < 8; ++slot)
        policy->on_insert({slot, slot, 1, 0, slot < 4 ? keep : Keep::kNormal});
      std::set<uint32_t> offered;
      for (int i = 0; i < 8; ++i) {
        offered.insert(policy->coldest());
        policy->on_spare(policy->coldest());
      }
      CHECK_EQ(offered.size(), size_t{8});
      CHECK_EQ(drained(*policy).size(), size_t{8});
      CHECK_EQ(policy->coldest(), kNoSlot);
    }
  }
}

TEST(a_scan_does_not_flush_what_came_back) {
  for (const std::string& name : kRemembering) {
    constexpr uint32_t kRoom = 2000;
    const auto policy = make_eviction_policy(name, kRoom);
    PlayedCache cache(*policy, kRoom);
    uint64_t once = 1 << 20;
    // Each comes back after more than all the room was used, so that only ghosts can tell that it does.
    for (int round = 0; round < 4; ++round) {
      for (uint64_t object = 0; object < 500; ++object) cache.access(object);
      for (uint32_t i = 0; i < kRoom + 200; ++i) cache.access(once++);
    }
    uint32_t kept = 0;
    for (uint64_t object = 0; object < 500; ++object) kept += cache.has(object);
    CHECK(kept > 450);
  }
  const auto lru = make_eviction_policy("lru", 2000);
  PlayedCache cache(*lru, 2000);
  for (uint64_t object = 0; object < 500; ++object) cache.access(object);
  for (uint64_t once = 1 << 20; once < (1 << 20) + 2200; ++once) cache.access(once);
  for (uint64_t object = 0; object < 500; ++object) CHECK(!cache.has(object));
}

TEST(lrfu_prefers_what_was_used_often_to_what_was_used_last) {
  const auto policy = make_eviction_policy("lrfu", 20);
  PlayedCache cache(*policy, 20);
  for (int i = 0; i < 5; ++i) cache.access(1);
  for (uint64_t object = 2; object < 30; ++object) cache.access(object);
  CHECK(cache.has(1) && !cache.has(2));
}

TEST(what_was_removed_leaves_no_ghost) {
  const auto policy = make_eviction_policy("2q", 100);
  PlayedCache cache(*policy, 100);
  for (uint64_t object = 0; object < 100; ++object) cache.access(object);
  const uint64_t evicted = cache.evict();
  cache.access(evicted);  // from its ghost: not on probation
  for (uint64_t object = 1000; object < 1200; ++object) cache.access(object);
  CHECK(cache.has(evicted));
  policy->on_remove(cache.slot(evicted));
  policy->on_insert({cache.slot(evicted), mix64(evicted + 1), 1, 0, Keep::kNormal});
  for (uint64_t object = 2000; object < 2200; ++object) cache.access(object);
  CHECK(!cache.has(evicted));
}

TEST(slots_that_came_by_growing_are_ranked_like_others) {
  for (const std::string& name : kAll) {
    const auto policy = make_eviction_policy(name, 1);
    policy->on_insert({0, 0, 1, 0, Keep::kNormal});
    policy->grow(10000);
    policy->on_insert({9999, 1, 1, 0, Keep::kNormal});
    CHECK(drained(*policy) == (std::vector<uint32_t>{0, 9999}));
  }
}

TEST(a_slot_is_ranked_once_and_an_unknown_policy_is_refused_by_name) {
  for (const std::string& name : kAll) {
    const auto policy = make_eviction_policy(name, 2);
    policy->on_insert({0, 0, 1, 0, Keep::kNormal});
    CHECK_THROWS(policy->on_insert({0, 0, 1, 0, Keep::kNormal}), std::logic_error);
    CHECK_THROWS(policy->on_use(1), std::logic_error);
    CHECK_THROWS(policy->on_keep(1, Keep::kNormal), std::logic_error);
    CHECK_THROWS(policy->on_evict(1), std::logic_error);
  }
  CHECK_THROWS(make_eviction_policy("none such", 2), std::invalid_argument);
}

TEST_MAIN()
