// When a call ends: at its deadline, or once it has moved nothing for a while.
#include <thread>

#include "base/deadline.hpp"
#include "check.hpp"

using namespace kvstore;

static void sleep_ms(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(a_call_that_moves_nothing_ends_when_it_may_not_stall_any_longer) {
  Progress progress(50);
  const Deadline deadline = Deadline::after_ms(60000).while_moving(progress);
  CHECK(deadline.left_ms() <= 50);
  CHECK(deadline.latest_left_ms() > 50000);
  sleep_ms(60);
  CHECK(deadline.expired());
  CHECK_EQ(deadline.left_ms(), int64_t{0});
  CHECK(!deadline.moves());
}

TEST(a_call_that_moves_goes_on_to_its_deadline_and_no_further) {
  Progress progress(60000);
  const Deadline deadline = Deadline::after_ms(50).while_moving(progress);
  CHECK(!deadline.expired());
  deadline.moved();
  sleep_ms(60);
  CHECK(deadline.expired());
  CHECK(deadline.moves());
}

TEST(what_moves_on_one_thread_keeps_the_waits_of_all_going) {
  Progress progress(300);
  const Deadline deadline = Deadline::after_ms(60000).while_moving(progress);
  const Deadline::Wait wait(deadline.within_ms(30000));
  std::thread other([&] {
    for (int i = 0; i < 8; ++i) {
      sleep_ms(50);
      deadline.moved();
    }
  });
  other.join();  // later than the wait alone would have lasted
  CHECK(!wait.over());
  CHECK(wait.slice_ms() > 0);
}

TEST(a_wait_ends_once_nothing_moves_any_more) {
  Progress progress(50);
  const Deadline deadline = Deadline::after_ms(60000).while_moving(progress);
  const Deadline::Wait wait(deadline);
  CHECK(!wait.over());
  sleep_ms(60);
  CHECK(wait.over());
}

TEST(a_deadline_without_progress_knows_of_no_movement) {
  const Deadline deadline = Deadline::after_ms(60000);
  deadline.moved();
  CHECK(!deadline.moves());
  CHECK(deadline.left_ms() > 50000);
  CHECK(deadline.left_ms() <= deadline.latest_left_ms());
}

TEST_MAIN()
