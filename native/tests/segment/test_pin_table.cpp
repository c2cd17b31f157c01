#include <cstdio>
#include <map>
#include <random>

#include "check.hpp"
#include "segment/pin_table.hpp"

using kvstore::PinBudget;
using kvstore::PinTable;

TEST(a_pin_lasts_to_its_deadline_and_gives_its_bytes_back) {
  PinBudget budget(1000);
  PinTable pins(budget);
  CHECK(pins.pin(3, 400, 1000, 500));
  CHECK(pins.is_pinned(3, 1499));
  CHECK(!pins.is_pinned(3, 1500));
  CHECK_EQ(budget.pinned_bytes(), uint64_t{400});
  pins.expire(1500 + 2 * PinTable::kTickMs);  // within two ticks of the wheel
  CHECK_EQ(budget.pinned_bytes(), uint64_t{0});
}

TEST(a_pin_is_prolonged_and_never_shortened_or_counted_twice) {
  PinBudget budget(1000);
  PinTable pins(budget);
  CHECK(pins.pin(1, 600, 1000, 500));
  CHECK(pins.pin(1, 600, 1100, 5000));
  CHECK(pins.pin(1, 600, 1200, 10));
  CHECK_EQ(budget.pinned_bytes(), uint64_t{600});
  pins.expire(3000);
  CHECK(pins.is_pinned(1, 6099));
  CHECK_EQ(budget.pinned_bytes(), uint64_t{600});
  pins.expire(6100 + 2 * PinTable::kTickMs);
  CHECK_EQ(budget.pinned_bytes(), uint64_t{0});
}

TEST(an_owner_has_its_share_and_no_use_of_anothers) {
  PinBudget budget(1000, 500);
  PinTable pins(budget);
  CHECK(pins.pin(0, 400, 1, 1000, 7));
  CHECK(!pins.pin(1, 101, 1, 1000, 7));
  CHECK(pins.pin(1, 400, 1, 1000, 8));
  CHECK(pins.pin(2, 200, 1, 1000));  // the store's own has none to keep to
  // Who promises a pin for longer takes it over, if its share has room for it.
  CHECK(pins.pin(0, 400, 1, 500, 8));
  CHECK(!pins.pin(0, 400, 1, 2000, 8));
  CHECK(!pins.is_pinned(0, 1500));
  pins.forget(1);
  CHECK(pins.pin(0, 400, 1, 2000, 8));
  CHECK(pins.is_pinned(0, 1500));
  CHECK(pins.pin(3, 400, 1, 1000, 7));  // 7 has its share back
  CHECK(!pins.pin(4, 101, 1, 1000, 8));
  CHECK_EQ(budget.pinned_bytes(), uint64_t{1000});
  pins.expire(3000);
  CHECK_EQ(budget.pinned_bytes(), uint64_t{0});
  CHECK(pins.pin(5, 500, 3000, 1000, 7));
}

TEST(the_budget_bounds_what_is_pinned) {
  PinBudget budget(1000);
  PinTable pins(budget);
  CHECK(pins.pin(0, 700, 1, 1000));
  CHECK(!pins.pin(1, 301, 1, 1000));
  CHECK(!pins.is_pinned(1, 1));
  CHECK(pins.pin(2, 300, 1, 1000));
  pins.forget(0);
  CHECK(pins.pin(1, 301, 1, 1000));
}

TEST(tables_that_share_a_budget_can_pin_no_more_than_it_together) {
  PinBudget budget(1000);
  PinTable one(budget), other(budget);
  CHECK(one.pin(1, 700, 1, 1000));
  CHECK(!other.pin(1, 301, 1, 1000));
  CHECK(other.pin(1, 300, 1, 1000));
  one.expire(1001 + 2 * PinTable::kTickMs);
  CHECK_EQ(budget.pinned_bytes(), uint64_t{300});
  CHECK(one.pin(2, 700, 2000, 1000));
}

TEST(random_traffic_agrees_with_a_map_of_deadlines) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  PinBudget budget(64 * 10);
  PinTable pins(budget);
  std::map<uint32_t, uint64_t> deadlines;
  uint64_t now = 1;
  for (int step = 0; step < 30000; ++step) {
    now += rng() % 20 == 0 ? rng() % 90000 : rng() % 60;
    const uint32_t slot = rng() % 64;
    if (rng() % 4 == 0) {
      pins.forget(slot);
      deadlines.erase(slot);
    } else {
      const uint32_t pin_ms = rng() % 60000;
      CHECK(pins.pin(slot, 10, now, pin_ms));
      deadlines[slot] = std::max(deadlines[slot], now + pin_ms);
    }
    uint64_t live = 0, lingering = 0;
    for (const auto& [s, deadline] : deadlines) {
      CHECK_EQ(pins.is_pinned(s, now), deadline > now);
      live += deadline > now;
      lingering +=
          deadline + 2 * PinTable::kTickMs + 1 > now;  // the wheel may give bytes back up to two ticks late
    }
    pins.expire(now);
    CHECK(budget.pinned_bytes() >= 10 * live && budget.pinned_bytes() <= 10 * lingering);
  }
}

TEST_MAIN()
