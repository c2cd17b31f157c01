#include <atomic>
#include <thread>
#include <vector>

#include "check.hpp"
#include "segment/budgets.hpp"

using namespace kvstore;

TEST(what_is_over_the_limit_is_refused_and_counted_and_what_is_given_back_can_be_had_again) {
  Budget budget("bytes", 100, 100);
  BudgetShare one(budget), other(budget);
  CHECK(one.take(60));
  CHECK(!other.take(41));
  CHECK(other.take(40));
  CHECK_EQ(budget.used(), uint64_t{100});
  one.give_back(60);
  CHECK(other.take(60));
  CHECK_EQ(budget.usage().refused, uint64_t{1});
  CHECK(!budget.take(UINT64_MAX));  // no sum wraps around
}

TEST(a_session_adds_nothing_over_its_own_limit_but_its_first_may_be_as_large_as_the_limit_in_all) {
  Budget budget("bytes", 100, 30);
  BudgetShare share(budget), large(budget);
  CHECK(share.take(20));
  CHECK(!share.take(11));
  CHECK(share.take(10));
  CHECK(large.take(70));
  CHECK(!large.take(1));
}

TEST(a_share_that_goes_gives_everything_back) {
  Budget budget("bytes", 100, 100);
  {
    BudgetShare share(budget);
    CHECK(share.take(70));
    share.give_back(1000);  // at most what it has
    CHECK(share.take(70));
  }
  CHECK_EQ(budget.used(), uint64_t{0});
}

TEST(who_waits_makes_the_budget_contended_and_gets_what_is_given_back) {
  Budget budget("bytes", 100, 100);
  BudgetShare holder(budget);
  CHECK(holder.take(100));
  const std::atomic<bool> cancelled{false};
  std::atomic<bool> got{false};
  std::thread waiter([&] {
    BudgetShare share(budget);
    got = share.take(50, Budget::Clock::now() + std::chrono::seconds(60), cancelled);
  });
  while (!budget.is_contended()) std::this_thread::yield();
  holder.give_back(50);
  waiter.join();
  CHECK(got.load());
  CHECK(!budget.is_contended());
  CHECK_EQ(budget.usage().refused, uint64_t{0});
}

TEST(waiting_ends_at_its_deadline_when_it_is_cancelled_and_where_it_can_not_help) {
  Budget budget("bytes", 100, 50);
  BudgetShare holder(budget), share(budget);
  CHECK(holder.take(100));
  std::atomic<bool> cancelled{false};
  CHECK(!share.take(10, Budget::Clock::now() + std::chrono::milliseconds(1), cancelled));
  const auto long_after = Budget::Clock::now() + std::chrono::hours(1);
  CHECK(!share.take(101, long_after, cancelled));  // more than there will ever be
  CHECK(!holder.take(1, long_after, cancelled));   // of its own: nobody else can give it
  cancelled = true;
  CHECK(!share.take(10, long_after, cancelled));
}

TEST(of_those_who_wait_who_wants_little_goes_first_and_nobody_slips_in_with_more) {
  Budget budget("bytes", 100, 100);
  BudgetShare holder(budget), passer_by(budget);
  CHECK(holder.take(100));
  const std::atomic<bool> cancelled{false};
  const auto deadline = Budget::Clock::now() + std::chrono::seconds(60);
  std::atomic<int> order{0}, small_at{0}, large_at{0};
  const auto wait_for = [&](uint64_t amount, std::atomic<int>& at) {
    BudgetShare share(budget);
    if (share.take(amount, deadline, cancelled)) at = ++order;
  };
  std::thread large([&] { wait_for(80, large_at); });
  while (!budget.is_contended()) std::this_thread::yield();
  std::thread small([&] { wait_for(20, small_at); });
  while (budget.waiting() < 2) std::this_thread::yield();
  holder.give_back(10);
  CHECK(!passer_by.try_take(20));  // as much as somebody waits for
  CHECK(passer_by.try_take(10));
  passer_by.give_back_all();
  holder.give_back(
      80);  // 90 are free: not enough for both, whose shares end after they have told their order
  small.join();
  large.join();
  CHECK_EQ(small_at.load(), 1);
  CHECK_EQ(large_at.load(), 2);
}

TEST(a_part_is_kept_for_those_who_have_little_who_need_not_wait_for_those_who_have_much) {
  Budget budget("bytes", 100, 100);
  budget.keep_for_small(20, 10);
  BudgetShare hog(budget), small(budget), other(budget);
  CHECK(!hog.take(81));
  CHECK(hog.take(80));
  CHECK(!hog.take(1));
  CHECK(!small.take(11));
  CHECK(small.take(6));
  CHECK(!small.take(5));  // it would have 11
  CHECK(small.take(4));
  CHECK(other.take(10));
  CHECK_EQ(budget.used(), uint64_t{100});
  const std::atomic<bool> cancelled{false};
  other.give_back(5);
  CHECK(!hog.take(1, Budget::Clock::now() + std::chrono::milliseconds(1), cancelled));
  std::atomic<bool> got{false};
  std::thread large([&] {
    BudgetShare share(budget);
    got = share.take(20, Budget::Clock::now() + std::chrono::seconds(60), cancelled);
  });
  while (!budget.is_contended()) std::this_thread::yield();
  CHECK(other.try_take(5));  // whoever else waits
  hog.give_back_all();
  large.join();
  CHECK(got.load());
}

TEST(threads_never_have_more_than_the_limit_together) {
  Budget budget("bytes", 1000, 1000);
  std::atomic<uint64_t> has{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      BudgetShare share(budget);
      for (int i = 0; i < 20000; ++i) {
        if (share.take(400)) {
          const uint64_t now = has += 400;
          uint64_t seen = most.load();
          while (now > seen && !most.compare_exchange_weak(seen, now)) {
          }
          has -= 400;
        }
        share.give_back_all();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(budget.used(), uint64_t{0});
  CHECK(most.load() <= 1000);
}

TEST(limits_follow_the_size_of_the_pool_and_a_small_one_may_be_used_whole) {
  Budgets large({}, uint64_t{64} << 30, uint64_t{32} << 30);
  CHECK_EQ(large.writing_bytes.limit(), uint64_t{16} << 30);
  CHECK_EQ(large.held_bytes.session_limit(), uint64_t{8} << 30);
  CHECK_EQ(large.registered_bytes.limit(), uint64_t{512} << 30);
  CHECK_EQ(large.writing_bytes.largest(), uint64_t{12} << 30);
  CHECK_EQ(large.writing_bytes.small(), uint64_t{16} << 20);
  Budgets medium({}, 512 << 20, 256 << 20);
  CHECK_EQ(medium.held_bytes.largest(), uint64_t{96} << 20);
  CHECK_EQ(medium.held_bytes.small(), uint64_t{4} << 20);
  Budgets small({}, 4 << 20, 2 << 20);
  CHECK_EQ(small.writing_bytes.limit(), uint64_t{4} << 20);
  CHECK_EQ(small.writing_bytes.largest(), uint64_t{4} << 20);
  BudgetLimits limits;
  limits.writing_bytes_max = 1 << 20;
  limits.session_share_max = 0.25;
  Budgets chosen(limits, 4 << 20, 2 << 20);
  CHECK_EQ(chosen.writing_bytes.session_limit(), uint64_t{256} << 10);
  CHECK_EQ(chosen.usage()[Budgets::kPinnedAt].session_limit, uint64_t{512} << 10);
}

TEST_MAIN()
