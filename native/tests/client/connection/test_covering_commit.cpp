// Which entries of a put may be called stored, and when.
#include "check.hpp"
#include "client/connection/covering_commit.hpp"

using namespace kvstore;
using wire::Status;

namespace {

// Two runs of two entries each.
struct Stripe {
  explicit Stripe(bool ack_committed) : statuses(4, 77) {
    batch.entries = {0, 1, 2, 3};
    batch.statuses = statuses.data();
    batch.ack_committed = ack_committed;
  }
  bool are(Status a, Status b, Status c, Status d) const {
    return batch.status(0) == a && batch.status(1) == b && batch.status(2) == c && batch.status(3) == d;
  }
  std::vector<uint8_t> statuses;
  TransportBatch batch;
};

const data_codec::PutAnswer kBothOk{{Status::kOk, Status::kOk}, 0};

data_codec::PutAnswer answer(std::vector<Status> statuses, uint64_t journal_seq = 0) {
  return {std::move(statuses), journal_seq};
}
constexpr Status kUntouched = static_cast<Status>(77);

}  // namespace

TEST(only_the_last_run_asks_for_the_commit_and_none_where_sealed_is_enough) {
  Stripe committed(true), sealed(false);
  CHECK(!CoveringCommit(committed.batch, 2, true).asked_by(0));
  CHECK(CoveringCommit(committed.batch, 2, true).asked_by(1));
  CHECK(!CoveringCommit(sealed.batch, 2, true).asked_by(1));
}

TEST(what_earlier_runs_sealed_is_stored_when_the_last_run_is_committed) {
  Stripe s(true);
  CoveringCommit commit(s.batch, 2, true);
  commit.answer({0, 1}, Status::kOk, answer({Status::kOk, Status::kExists}));
  CHECK(s.are(Status::kNotCommitted, Status::kExists, kUntouched, kUntouched));
  commit.answer({2, 3}, Status::kOk, kBothOk);
  CHECK(s.are(Status::kOk, Status::kExists, Status::kOk, Status::kOk));
  CHECK_EQ(commit.answered(), 2u);
}

TEST(nothing_is_stored_when_the_commit_does_not_come) {
  for (const Status reply : {Status::kNotCommitted, Status::kTimeout}) {
    Stripe s(true);
    CoveringCommit commit(s.batch, 2, true);
    commit.answer({0, 1}, Status::kOk, kBothOk);
    commit.answer({2, 3}, reply, kBothOk);
    const Status last = reply == Status::kNotCommitted ? Status::kNotCommitted : reply;
    CHECK(s.are(Status::kNotCommitted, Status::kNotCommitted, last, last));
  }
}

TEST(a_run_that_is_refused_as_a_whole_costs_its_own_entries_only) {
  Stripe s(true);
  CoveringCommit commit(s.batch, 2, true);
  commit.answer({0, 1}, Status::kTooLarge, {});
  commit.answer({2, 3}, Status::kOk, answer({Status::kOk, Status::kNoSpace}));
  CHECK(s.are(Status::kTooLarge, Status::kTooLarge, Status::kOk, Status::kNoSpace));
}

TEST(without_a_wish_for_the_commit_what_is_sealed_is_stored_at_once) {
  Stripe s(false);
  CoveringCommit commit(s.batch, 2, true);
  commit.answer({0, 1}, Status::kOk, kBothOk);
  CHECK(s.are(Status::kOk, Status::kOk, kUntouched, kUntouched));
}

TEST(of_several_stripes_none_asks_and_what_is_sealed_waits_for_a_commit_of_the_highest_number) {
  Stripe s(true);
  CoveringCommit commit(s.batch, 2, false);
  CHECK(!commit.asked_by(0) && !commit.asked_by(1));
  commit.answer({0, 1}, Status::kOk, answer({Status::kOk, Status::kExists}, 9));
  commit.answer({2, 3}, Status::kOk, answer({Status::kOk, Status::kNoSpace}, 7));
  CHECK(s.are(Status::kNotCommitted, Status::kExists, Status::kNotCommitted, Status::kNoSpace));
  CHECK_EQ(commit.journal_seq(), 9u);
  commit.covered();
  CHECK(s.are(Status::kOk, Status::kExists, Status::kOk, Status::kNoSpace));
  CHECK_EQ(commit.journal_seq(), 0u);
}

TEST(without_a_wish_for_the_commit_there_is_no_number_to_wait_for) {
  Stripe s(false);
  CoveringCommit commit(s.batch, 1, false);
  commit.answer({0, 1}, Status::kOk, answer({Status::kOk, Status::kOk}, 9));
  CHECK_EQ(commit.journal_seq(), 0u);
}

TEST_MAIN()
