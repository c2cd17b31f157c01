#include <deque>
#include <random>
#include <vector>

#include "check.hpp"
#include "segment/deadline_wheel.hpp"

using namespace kvstore;

namespace {

constexpr uint32_t kPlenty = 1u << 30;
constexpr uint64_t kDayMs = 24 * 60 * 60 * 1000;

struct Thing : DeadlineWheel::Node {
  bool passed = false;
};

uint32_t pass(DeadlineWheel& wheel, uint64_t now_ms, uint32_t steps_max = kPlenty) {
  uint32_t passed = 0;
  wheel.pass(now_ms, steps_max, [&](DeadlineWheel::Node& node) {
    CHECK(node.deadline_ms <= now_ms);
    static_cast<Thing&>(node).passed = true;
    ++passed;
  });
  return passed;
}

}  // namespace

TEST(a_deadline_passes_soon_after_its_time_and_never_before_it) {
  std::mt19937_64 random(7);
  std::fprintf(stderr, "seed 7\n");
  DeadlineWheel wheel;
  std::deque<Thing> things(2000);
  uint64_t now = 1'000'000;
  for (Thing& thing : things) {
    thing.deadline_ms = now + random() % (random() % 2 == 0 ? 2000 : kDayMs);
    wheel.add(thing);
  }
  while (wheel.size() > 0) {
    now += 1 + random() % (random() % 4 == 0 ? kDayMs / 50 : 500);
    pass(wheel, now);
    for (const Thing& thing : things) {
      CHECK(!thing.passed || thing.deadline_ms <= now);
      CHECK(thing.passed || thing.deadline_ms + 256 > now);
    }
  }
}

TEST(a_call_looks_at_no_more_things_than_it_may_and_the_rest_is_found_later) {
  DeadlineWheel wheel;
  std::deque<Thing> things(1000);
  for (Thing& thing : things) {
    thing.deadline_ms = 5000;
    wheel.add(thing);
  }
  uint32_t passed = 0;
  for (int call = 0; call < 10; ++call) {
    const uint32_t now_passed = pass(wheel, 6000, 100);
    CHECK_EQ(now_passed, 100u);
    passed += now_passed;
  }
  CHECK_EQ(passed, 1000u);
}

TEST(many_that_go_round_once_more_hold_up_nothing_behind_them) {
  DeadlineWheel wheel;
  std::deque<Thing> far(1000);
  Thing near;
  for (Thing& thing : far) {
    thing.deadline_ms = kDayMs;
    wheel.add(thing);
  }
  const uint64_t soon_ms = 20 * 60 * 1000;  // beyond the span of the wheel
  near.deadline_ms = soon_ms;
  wheel.add(near);
  for (int call = 0; call < 100 && !near.passed; ++call) pass(wheel, soon_ms + 1000, 100);
  CHECK(near.passed);
  CHECK_EQ(wheel.size(), 1000u);
}

TEST(what_was_taken_out_does_not_pass) {
  DeadlineWheel wheel;
  Thing one, two;
  one.deadline_ms = two.deadline_ms = 100;
  wheel.add(one);
  wheel.add(two);
  wheel.remove(one);
  CHECK_EQ(pass(wheel, 10'000), 1u);
  CHECK(!one.passed && two.passed);
}

TEST_MAIN()
