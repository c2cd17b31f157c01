// What the other tests lean on.
#include <cassert>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace kvstore::testing;

TEST(asserts_are_alive_where_tests_run) {
  bool alive = false;
  assert((alive = true));
  CHECK(alive);
}

TEST(failed_checks_of_all_threads_are_counted) {
  constexpr int kThreads = 4, kFailures = 2000;
  const int before = failures();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([] {
      for (int n = 0; n < kFailures; ++n) ++failures();
    });
  for (std::thread& thread : threads) thread.join();
  const int counted = failures() - before;
  failures() = before;
  CHECK_EQ(counted, kThreads * kFailures);
}

TEST_MAIN()
