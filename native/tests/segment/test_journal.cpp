#include <poll.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "segment/journal.hpp"

using namespace kvstore;

static std::vector<JournalEntry> entries(size_t count, JournalOp op = JournalOp::kAdd, uint8_t ns = 1) {
  static uint64_t next = 0;
  std::vector<JournalEntry> out;
  for (size_t i = 0; i < count; ++i) out.push_back({{++next, 7}, {ns}, static_cast<uint32_t>(next), op});
  return out;
}

static bool readable(const Journal& journal, int within_ms = 0) {
  pollfd item{journal.fd(), POLLIN, 0};
  return ::poll(&item, 1, within_ms) == 1;
}

TEST(entries_are_numbered_and_handed_out_once_in_order) {
  Journal journal(100);
  CHECK(!journal.drain(10));
  CHECK_EQ(journal.append(entries(3)), uint64_t{1});
  CHECK_EQ(journal.append(entries(2)), uint64_t{4});
  CHECK(readable(journal, 5000));
  auto batch = journal.drain(4);
  CHECK(batch && batch->first_seq == 1 && batch->last_seq == 4);
  batch = journal.drain(4);
  CHECK(batch && batch->first_seq == 5 && batch->last_seq == 5);
  CHECK(!readable(journal));
  CHECK(!journal.drain(4));
}

TEST(a_waiter_makes_what_it_waits_for_due) {
  Journal journal(1000000);
  const uint64_t first = journal.append(entries(1));
  const std::atomic<bool> cancelled{false};
  std::thread waiter(
      [&] { journal.wait_acked(first, Journal::Clock::now() + std::chrono::seconds(20), cancelled); });
  CHECK(readable(journal, 5000));
  CHECK(journal.drain(10).has_value());
  CHECK(!readable(journal));  // nothing is left, whoever waits
  journal.ack(first);
  waiter.join();
}

TEST(what_a_full_batch_leaves_behind_is_due_at_once) {
  Journal journal(1000000);
  journal.append(entries(5));
  CHECK(journal.drain(2).has_value());
  CHECK(readable(journal, 5000));
  CHECK(journal.drain(3).has_value());
  CHECK(!readable(journal));
}

TEST(groups_are_runs_of_one_op_and_namespace) {
  Journal journal(100);
  journal.append(entries(2));
  journal.append(entries(1, JournalOp::kRemove));
  journal.append(entries(1, JournalOp::kRemove, 2));
  const auto batch = journal.drain(100);
  CHECK(batch.has_value());
  const std::vector<uint8_t>& g = batch->groups;
  CHECK_EQ(g.size(), size_t{3 * 16 + 4 * 20});
  CHECK(g[0] == 1 && g[4] == 2 && g[8] == 1);
  CHECK(g[56] == 2 && g[60] == 1 && g[64] == 1);
  CHECK(g[92] == 2 && g[96] == 1 && g[100] == 2);
  uint64_t lo, hi;
  uint32_t length;
  std::memcpy(&lo, &g[32], 8), std::memcpy(&hi, &g[40], 8), std::memcpy(&length, &g[52], 4);
  CHECK(hi == 7 && length == lo);  // the second fingerprint, and the second length after both
}

TEST(rewind_reaches_back_to_what_is_not_acknowledged) {
  Journal journal(100);
  journal.append(entries(6));
  journal.drain(100);
  journal.ack(2);
  CHECK_EQ(journal.oldest_kept_seq(), uint64_t{3});
  CHECK(!journal.rewind(1));
  CHECK(!journal.rewind(7));
  CHECK(journal.rewind(2));
  CHECK(readable(journal, 5000));
  const auto batch = journal.drain(100);
  CHECK(batch && batch->first_seq == 3 && batch->last_seq == 6);
  journal.ack(6);
  CHECK_EQ(journal.oldest_kept_seq(), uint64_t{7});
  CHECK(journal.rewind(6));
  CHECK(!journal.drain(1));
  CHECK_THROWS(journal.ack(7), std::invalid_argument);
}

TEST(a_full_backlog_drops_what_was_handed_out_before_it_makes_a_gap) {
  Journal journal(4);
  journal.append(entries(3));
  journal.drain(2);
  journal.append(entries(2));  // 5 kept, 2 of them handed out
  CHECK_EQ(journal.overflows(), uint64_t{1});
  CHECK_EQ(journal.oldest_kept_seq(), uint64_t{3});
  CHECK(!journal.rewind(1));
  auto batch = journal.drain(100);
  CHECK(batch && batch->first_seq == 3 && batch->last_seq == 5);  // no gap
  journal.append(entries(5));                                     // more than fit, handed out or not
  CHECK_EQ(journal.overflows(), uint64_t{2});
  CHECK_EQ(journal.oldest_kept_seq(), journal.last_seq() + 1);
  CHECK(!readable(journal));
  journal.append(entries(1));
  batch = journal.drain(100);
  CHECK(batch && batch->first_seq == 11);  // 6..10 are missing: visible to the consumer
}

TEST(an_inventory_stands_for_everything_before_it) {
  Journal journal(100);
  journal.append(entries(5));
  CHECK_EQ(journal.skip_to_end(), uint64_t{5});
  CHECK(!readable(journal));
  journal.append(entries(1));
  const auto batch = journal.drain(100);
  CHECK(batch && batch->first_seq == 6);
  journal.ack(5);
  CHECK_EQ(journal.acked_seq(), uint64_t{5});
}

TEST(waiters_are_woken_by_the_ack_the_deadline_or_an_interrupt) {
  using namespace std::chrono_literals;
  Journal journal(100);
  journal.append(entries(3));
  std::atomic<bool> never{false};
  CHECK(!journal.wait_acked(1, Journal::Clock::now() + 5ms, never));
  std::atomic<int> woken{0};
  std::thread waiter([&] { woken += journal.wait_acked(3, Journal::Clock::now() + 30s, never); });
  journal.ack(2);
  journal.ack(3);
  waiter.join();
  CHECK_EQ(woken.load(), 1);
  std::atomic<bool> cancelled{false};
  std::thread stopped([&] { woken += journal.wait_acked(99, Journal::Clock::now() + 30s, cancelled); });
  cancelled = true;
  journal.interrupt();
  stopped.join();
  CHECK_EQ(woken.load(), 1);
}

TEST_MAIN()
