// What is wrong with whom: one state a peer, and a number that grows with each change.
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "client/peer_troubles.hpp"

using namespace kvstore;

TEST(a_state_is_counted_and_changes_only_when_it_becomes_another) {
  PeerTroubles troubles;
  troubles.works("master a:1");
  CHECK_EQ(troubles.changes(), 0u);
  for (int i = 0; i < 5; ++i) troubles.failed("master a:1", Trouble::kUnreachable);
  CHECK_EQ(troubles.changes(), 1u);
  troubles.failed("master a:1", Trouble::kUnauthorized, "unknown token");
  troubles.failed("master a:1", Trouble::kUnauthorized, "unknown token");
  CHECK_EQ(troubles.changes(), 2u);
  const auto all = troubles.all();
  CHECK_EQ(all.size(), 1u);
  CHECK(all[0].trouble == Trouble::kUnauthorized && all[0].text == "unknown token" && all[0].count == 2);
  troubles.works("master b:1");
  CHECK_EQ(troubles.changes(), 2u);
  troubles.works("master a:1");
  CHECK_EQ(troubles.changes(), 3u);
  CHECK(troubles.all().empty() && troubles.none());
}

TEST(what_is_known_exactly_is_not_overwritten_by_what_followed_from_it) {
  PeerTroubles troubles;
  troubles.failed("segment a:1", Trouble::kWrongPeer);
  troubles.failed_somehow("segment a:1", NetStatus::kRefused);
  CHECK(troubles.all()[0].trouble == Trouble::kWrongPeer);
  troubles.failed_somehow("segment b:1", NetStatus::kTimeout);
  CHECK(troubles.all()[1].trouble == Trouble::kNoAnswer);
  CHECK_EQ(troubles.changes(), 2u);
}

TEST(subjects_and_texts_are_bounded) {
  PeerTroubles troubles;
  for (size_t i = 0; i < 2 * PeerTroubles::kSubjectsMax; ++i)
    troubles.failed("segment " + std::to_string(i), Trouble::kRefused, std::string(5000, 'x'));
  const auto all = troubles.all();
  CHECK_EQ(all.size(), PeerTroubles::kSubjectsMax);
  CHECK_EQ(all[0].text.size(), PeerTroubles::kTextBytesMax);
}

TEST(threads_share_it) {
  PeerTroubles troubles;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&troubles, t] {
      const std::string mine = "segment " + std::to_string(t);
      for (int i = 0; i < 1000; ++i) {
        troubles.failed(mine, Trouble::kClosed);
        troubles.works(mine);
        troubles.all();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(troubles.changes(), 8000u);
  CHECK(troubles.none());
}

TEST_MAIN()
