#include "check.hpp"
#include "client/circuit_breaker.hpp"

using namespace kvstore;
using Verdict = CircuitBreaker::Verdict;

namespace {

const CircuitBreaker::Time kStart{std::chrono::hours(1)};
CircuitBreaker::Time at_ms(int64_t ms) { return kStart + std::chrono::milliseconds(ms); }

}  // namespace

TEST(a_failure_refuses_calls_until_the_back_off_is_over_and_then_lets_one_probe) {
  CircuitBreaker breaker(50, 1000, 1);
  const auto first = breaker.admit(at_ms(0));
  CHECK(first.verdict == Verdict::kAllowed);
  CHECK(breaker.failure(first, at_ms(0)));
  CHECK(breaker.admit(at_ms(0)).verdict == Verdict::kRefused);
  CHECK(breaker.admit(at_ms(24)).verdict == Verdict::kRefused);
  CHECK(breaker.refusing(at_ms(24)));
  CHECK(!breaker.refusing(at_ms(51)));
  const auto probe = breaker.admit(at_ms(51));
  CHECK(probe.verdict == Verdict::kProbe);
  CHECK(breaker.admit(at_ms(51)).verdict == Verdict::kRefused);
  CHECK(breaker.refusing(at_ms(5000)));
  breaker.success(probe);
  CHECK(breaker.admit(at_ms(52)).verdict == Verdict::kAllowed);
  CHECK_EQ(breaker.backoff_ms(), 0);
}

TEST(the_back_off_doubles_with_failures_in_a_row_up_to_its_limit_and_starts_over_after_a_success) {
  CircuitBreaker breaker(50, 300, 2);
  int64_t now_ms = 0;
  breaker.failure(breaker.admit(at_ms(now_ms)), at_ms(now_ms));
  for (const int64_t wanted : {50, 100, 200, 300, 300}) {
    CHECK_EQ(breaker.backoff_ms(), wanted);
    CHECK(breaker.refusing(at_ms(now_ms + wanted / 2 - 1)));  // the jitter takes away half at most
    now_ms += wanted + 1;
    const auto probe = breaker.admit(at_ms(now_ms));
    CHECK(probe.verdict == Verdict::kProbe);
    CHECK(breaker.failure(probe, at_ms(now_ms)));
  }
  now_ms += 301;
  breaker.success(breaker.admit(at_ms(now_ms)));
  breaker.failure(breaker.admit(at_ms(now_ms)), at_ms(now_ms));
  CHECK_EQ(breaker.backoff_ms(), 50);
}

TEST(of_calls_admitted_together_only_the_first_failure_counts) {
  CircuitBreaker breaker(50, 1000, 3);
  const auto a = breaker.admit(at_ms(0)), b = breaker.admit(at_ms(0)), c = breaker.admit(at_ms(0));
  CHECK(breaker.failure(a, at_ms(1)));
  CHECK(!breaker.failure(b, at_ms(2)));
  breaker.success(c);  // says nothing newer than the failure does
  CHECK_EQ(breaker.backoff_ms(), 50);
  CHECK(breaker.admit(at_ms(3)).verdict == Verdict::kRefused);
}

TEST(a_late_outcome_of_an_old_call_does_not_decide_a_probe) {
  CircuitBreaker breaker(50, 1000, 4);
  const auto old = breaker.admit(at_ms(0));
  breaker.failure(breaker.admit(at_ms(0)), at_ms(0));
  const auto probe = breaker.admit(at_ms(100));
  CHECK(probe.verdict == Verdict::kProbe);
  CHECK(!breaker.failure(old, at_ms(101)));
  breaker.success(old);
  CHECK(breaker.admit(at_ms(101)).verdict == Verdict::kRefused);
  breaker.success(probe);
  CHECK(breaker.admit(at_ms(102)).verdict == Verdict::kAllowed);
}

TEST(a_cancelled_probe_leaves_the_next_call_to_probe) {
  CircuitBreaker breaker(50, 1000, 5);
  breaker.failure(breaker.admit(at_ms(0)), at_ms(0));
  const auto probe = breaker.admit(at_ms(100));
  breaker.cancel(probe, at_ms(100));
  CHECK(breaker.admit(at_ms(100)).verdict == Verdict::kProbe);
}

TEST(callers_that_give_up_early_are_no_failure_of_the_peer_until_it_had_time_to_answer) {
  CircuitBreaker breaker(50, 1000, 3);
  // Many at a time, of a millisecond each: the same time is counted once.
  for (int64_t ms = 0; ms < 45; ++ms) {
    const auto one = breaker.admit(at_ms(ms)), other = breaker.admit(at_ms(ms));
    CHECK(one.verdict == Verdict::kAllowed && other.verdict == Verdict::kAllowed);
    CHECK(!breaker.timeout(one, at_ms(ms), at_ms(ms + 1)));
    CHECK(!breaker.timeout(other, at_ms(ms), at_ms(ms + 1)));
  }
  breaker.success(breaker.admit(at_ms(150)));  // it answers, and all is forgotten
  for (int64_t ms = 200; ms < 248; ms += 3)
    CHECK(!breaker.timeout(breaker.admit(at_ms(ms)), at_ms(ms), at_ms(ms + 3)));
  CHECK(breaker.timeout(breaker.admit(at_ms(248)), at_ms(248), at_ms(251)));
  CHECK(breaker.refusing(at_ms(252)));
}

TEST(a_call_that_waited_long_enough_opens_it_alone_and_a_probe_that_did_not_is_followed_by_another) {
  CircuitBreaker breaker(50, 1000, 4);
  CHECK(breaker.timeout(breaker.admit(at_ms(0)), at_ms(0), at_ms(250)));
  const auto probe = breaker.admit(at_ms(301));
  CHECK(probe.verdict == Verdict::kProbe);
  CHECK(!breaker.timeout(probe, at_ms(301), at_ms(302)));
  const auto next = breaker.admit(at_ms(303));
  CHECK(next.verdict == Verdict::kProbe);
  CHECK(breaker.timeout(next, at_ms(303), at_ms(553)));
  CHECK_EQ(breaker.backoff_ms(), 100);
}

TEST_MAIN()
