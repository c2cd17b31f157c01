#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "segment/eviction/eviction_policy.hpp"

using namespace kvstore;

static Arrival arrival(uint32_t slot, Keep keep = Keep::kNormal) { return {slot, slot, 1, 0, keep}; }

static std::vector<uint32_t> drained(EvictionPolicy& policy) {
  std::vector<uint32_t> order;
  for (uint32_t slot = policy.coldest(); slot != kNoSlot; slot = policy.coldest()) {
    order.push_back(slot);
    policy.on_evict(slot);
  }
  return order;
}

TEST(what_was_used_longest_ago_goes_first) {
  const auto policy = make_eviction_policy("lru", 4);
  for (uint32_t slot = 0; slot < 4; ++slot) policy->on_insert(arrival(slot));
  policy->on_use(0);
  policy->on_spare(1);
  policy->on_remove(3);
  CHECK(drained(*policy) == (std::vector<uint32_t>{2, 0, 1}));
}

TEST(demoted_objects_go_first_and_retained_ones_last_whatever_was_used) {
  const auto policy = make_eviction_policy("lru", 6);
  policy->on_insert(arrival(0, Keep::kRetained));
  for (uint32_t slot = 1; slot < 5; ++slot) policy->on_insert(arrival(slot));
  policy->on_insert(arrival(5, Keep::kDemoted));
  policy->on_keep(4, Keep::kDemoted);
  policy->on_keep(1, Keep::kRetained);
  policy->on_keep(5, Keep::kNormal);
  policy->on_use(4);
  CHECK(drained(*policy) == (std::vector<uint32_t>{4, 2, 3, 5, 0, 1}));
}

TEST(slots_that_came_by_growing_are_ranked_like_others) {
  const auto policy = make_eviction_policy("lru", 1);
  policy->on_insert(arrival(0));
  policy->grow(3);
  policy->on_insert(arrival(2));
  policy->on_use(0);
  CHECK(drained(*policy) == (std::vector<uint32_t>{2, 0}));
}

TEST(a_slot_is_ranked_once_and_an_unknown_policy_is_refused_by_name) {
  const auto policy = make_eviction_policy("lru", 2);
  policy->on_insert(arrival(0));
  CHECK_THROWS(policy->on_insert(arrival(0)), std::logic_error);
  CHECK_THROWS(policy->on_use(1), std::logic_error);
  CHECK_THROWS(policy->on_keep(1, Keep::kNormal), std::logic_error);
  CHECK_THROWS(make_eviction_policy("none such", 2), std::invalid_argument);
}

TEST_MAIN()
