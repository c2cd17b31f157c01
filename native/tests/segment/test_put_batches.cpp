// Which puts are one batch, and when it is over.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "check.hpp"
#include "segment/put_batches.hpp"

using kvstore::PutBatches;

TEST(a_batch_is_open_from_its_beginning_until_it_is_closed) {
  PutBatches batches;
  CHECK(!batches.is_open(0));
  const uint32_t one = batches.open(1), other = batches.open(1);
  CHECK(one != 0 && other != 0 && one != other);
  CHECK(batches.is_open(one) && batches.is_open(other));
  batches.close(one);
  CHECK(!batches.is_open(one) && batches.is_open(other));
  CHECK(!batches.begin_request(one, 2));
}

TEST(a_commit_ends_the_batches_that_it_covers_but_for_those_with_a_request_running) {
  PutBatches batches;
  const uint32_t covered = batches.open(1), running = batches.open(1), further = batches.open(1);
  for (const uint32_t batch : {covered, running, further}) CHECK(batches.begin_request(batch, 1));
  batches.end_request(covered, 10, 2);
  batches.end_request(further, 11, 2);
  batches.close_up_to(10);
  CHECK(!batches.is_open(covered));
  CHECK(batches.is_open(running) && batches.is_open(further));
  batches.end_request(running, 9, 3);
  batches.close_up_to(10);
  CHECK(!batches.is_open(running) && batches.is_open(further));
}

TEST(a_batch_that_nothing_is_heard_of_ends_unless_a_request_is_running) {
  PutBatches batches;
  const uint32_t idle = batches.open(1), running = batches.open(1);
  batches.begin_request(idle, 1);
  batches.begin_request(running, 1);
  batches.end_request(idle, 1, 5);
  batches.expire(4 + PutBatches::kIdleMsMax);
  CHECK(batches.is_open(idle));
  batches.expire(5 + PutBatches::kIdleMsMax);
  CHECK(!batches.is_open(idle) && batches.is_open(running));
}

TEST(an_idle_batch_ends_in_its_time_whatever_others_are_looked_at_before) {
  PutBatches batches;
  const uint32_t early = batches.open(1), late = batches.open(100);
  batches.expire(100);
  batches.expire(PutBatches::kIdleMsMax);
  CHECK(batches.is_open(early) && batches.is_open(late));
  batches.expire(1 + PutBatches::kIdleMsMax);
  CHECK(!batches.is_open(early) && batches.is_open(late));
  const uint32_t later = batches.open(2 + PutBatches::kIdleMsMax);
  batches.expire(100 + PutBatches::kIdleMsMax);
  CHECK(!batches.is_open(late) && batches.is_open(later));
  batches.begin_request(later, 200 + PutBatches::kIdleMsMax);
  batches.expire(3 + 2 * PutBatches::kIdleMsMax);
  CHECK(batches.is_open(later));
  batches.end_request(later, 1, 4 + 2 * PutBatches::kIdleMsMax);
  batches.expire(4 + 3 * PutBatches::kIdleMsMax);
  CHECK(!batches.is_open(later));
}

TEST(a_batch_keeps_no_more_than_it_may_and_all_together_no_more_than_they_may) {
  PutBatches batches(100, 250);
  const uint32_t one = batches.open(1), two = batches.open(1), three = batches.open(1);
  CHECK(batches.keep(one, 60));
  CHECK(!batches.keep(one, 41));
  CHECK(batches.keep(one, 40));
  CHECK(batches.keep(two, 90));
  CHECK(batches.keep(three, 60));
  CHECK_EQ(batches.kept_bytes(), uint64_t{250});
  CHECK(batches.keep(three, 10));  // at the cost of the one that keeps most
  CHECK(!batches.keeps(one) && batches.is_open(one));
  CHECK(!batches.keep(one, 1));
  CHECK(batches.keeps(two) && batches.keeps(three));
  CHECK_EQ(batches.kept_bytes(), uint64_t{160});
}

TEST(what_a_batch_has_kept_others_may_keep_when_it_is_over) {
  PutBatches batches(100, 100);
  const uint32_t closed = batches.open(1), committed = batches.open(1), forgotten = batches.open(1);
  for (const uint32_t batch : {closed, committed, forgotten}) CHECK(batches.keep(batch, 30));
  batches.begin_request(forgotten, 1);
  batches.end_request(forgotten, 7, 1);
  batches.close(closed);
  CHECK_EQ(batches.kept_bytes(), uint64_t{60});
  batches.close_up_to(6);
  CHECK_EQ(batches.kept_bytes(), uint64_t{30});
  batches.expire(1 + PutBatches::kIdleMsMax);
  CHECK_EQ(batches.kept_bytes(), uint64_t{0});
}

TEST(a_commit_looks_at_the_batches_that_it_ends_and_no_others) {
  // So many that looking at each of them for each commit would take minutes.
  constexpr uint32_t kOpen = 100'000, kCommits = 100'000;
  PutBatches batches;
  std::vector<uint32_t> later;
  for (uint32_t i = 0; i < kOpen; ++i) {
    later.push_back(batches.open(1));
    CHECK(batches.begin_request(later.back(), 1));
    if (i % 2 == 0) batches.end_request(later.back(), kCommits + 1, 1);
  }
  for (uint64_t seq = 1; seq <= kCommits; ++seq) {
    const uint32_t own = batches.open(1);
    CHECK(batches.begin_request(own, 1));
    batches.end_request(own, seq, 1);
    batches.close_up_to(seq);
    CHECK(!batches.is_open(own));
  }
  CHECK_EQ(batches.size(), size_t{kOpen});
  batches.close_up_to(kCommits + 1);
  CHECK_EQ(batches.size(), size_t{kOpen / 2});
}

TEST(whatever_begins_and_ends_a_commit_ends_what_it_covers) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  struct Model {
    uint64_t last_seq = 0, heard_of_ms = 0;
    uint32_t requests = 0;
  };
  PutBatches batches;
  std::map<uint32_t, Model> open;
  uint64_t seq = 0, now = 1;
  const auto any = [&] { return std::next(open.begin(), static_cast<long>(rng() % open.size())); };
  for (int step = 0; step < 50'000; ++step) {
    now += rng() % 20;
    const unsigned what = rng() % 8;
    if (open.empty() || (what == 0 && open.size() < 200)) {
      open[batches.open(now)] = {0, now, 0};
    } else if (what <= 3) {
      const auto batch = any();
      CHECK(batches.begin_request(batch->first, now));
      ++batch->second.requests;
      batch->second.heard_of_ms = now;
    } else if (what <= 6) {
      const auto batch = any();
      if (batch->second.requests == 0) continue;
      const uint64_t reaches =
          rng() % 4 == 0 ? rng() % (seq + 1) : ++seq;  // what was there already, or is new
      batches.end_request(batch->first, reaches, now);
      batch->second = {std::max(batch->second.last_seq, reaches), now, batch->second.requests - 1};
    } else if (rng() % 4 == 0) {
      const auto batch = any();
      batches.close(batch->first);
      open.erase(batch);
    } else {
      const uint64_t up_to = seq - rng() % std::min<uint64_t>(seq + 1, 20);
      batches.close_up_to(up_to);
      for (auto at = open.begin(); at != open.end();)
        at = at->second.requests == 0 && at->second.last_seq <= up_to ? open.erase(at) : std::next(at);
    }
    CHECK_EQ(batches.size(), open.size());
    if (step % 100 == 0)
      for (const auto& [batch, _] : open) CHECK(batches.is_open(batch));
  }
}

TEST_MAIN()
