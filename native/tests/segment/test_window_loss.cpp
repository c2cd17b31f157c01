// What a range of addresses is worth while it slides over objects that hang on each other.
#include <cstdio>
#include <random>
#include <vector>

#include "check.hpp"
#include "segment/window_loss.hpp"

using namespace kvstore;

TEST(a_head_counts_as_long_as_something_that_hangs_on_it_stays_outside) {
  const WindowLoss::Object head{1, kNoSlot, 2, false, 10}, first{2, 1, 1, false, 20},
      second{3, 1, 0, false, 30}, tail{4, 2, 0, false, 40};
  WindowLoss loss;
  loss.add(head);
  CHECK_EQ(loss.sum().heads, 1u);
  loss.add(second);
  CHECK_EQ(loss.sum().heads, 1u);  // the other branch is outside
  loss.add(first);
  CHECK_EQ(loss.sum().heads, 1u);  // now the first branch leaves its tail
  loss.add(tail);
  CHECK_EQ(loss.sum().heads, 0u);
  loss.take_out(head);
  CHECK_EQ(loss.sum().heads, 0u);
  loss.take_out(second);
  CHECK_EQ(loss.sum().heads, 0u);
  loss.take_out(tail);
  CHECK_EQ(loss.sum().heads, 1u);
  CHECK_EQ(loss.sum().cost, 20.0);
}

TEST(retained_ones_go_last_heads_before_them_and_what_costs_least_first) {
  const WindowLoss::Sum cheap{0, 0, 1}, dear{0, 0, 100}, head{0, 1, 1}, retained{1, 0, 1};
  CHECK(cheap < dear && dear < head && head < retained);
  CHECK(!(cheap < cheap));
}

TEST(a_range_that_slides_counts_what_one_that_is_made_anew_does) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  std::vector<WindowLoss::Object> objects(300);
  for (uint32_t slot = 0; slot < objects.size(); ++slot) {
    objects[slot].slot = slot;
    objects[slot].is_retained = rng() % 50 == 0;
    objects[slot].cost = static_cast<double>(rng() % 1000);
  }
  for (WindowLoss::Object& object : objects) {
    if (rng() % 3 == 0) continue;
    object.parent = rng() % objects.size();
    ++objects[object.parent].children;
  }
  WindowLoss sliding;
  size_t first = 0, end = 0;
  while (end < objects.size()) {
    if (first < end && rng() % 2 == 0)
      sliding.take_out(objects[first++]);
    else
      sliding.add(objects[end++]);
    WindowLoss::Sum anew;
    for (size_t i = first; i < end; ++i) {
      uint32_t inside = 0;
      for (size_t j = first; j < end; ++j) inside += objects[j].parent == objects[i].slot;
      anew.heads += inside < objects[i].children;
      anew.retained += objects[i].is_retained;
      anew.cost += objects[i].cost;
    }
    CHECK_EQ(sliding.sum().heads, anew.heads);
    CHECK_EQ(sliding.sum().retained, anew.retained);
    CHECK_EQ(sliding.sum().cost, anew.cost);
  }
}

TEST_MAIN()
