// A made-up trace on a real store: sessions that go on, or not, over a few shared prompts, and scans between them.
#include <map>
#include <random>

#include "check.hpp"
#include "replay/replay.hpp"

using namespace kvstore;
using replay::Hits;
using replay::Request;

static std::vector<Request> made_up_trace(uint32_t seed, uint32_t request_count) {
  std::mt19937 random(seed);
  std::vector<Request> requests;
  std::vector<std::vector<uint32_t>> sessions;
  uint32_t next_page = 1000;
  for (uint32_t i = 0; i < request_count; ++i) {
    std::vector<uint32_t> pages;
    const bool goes_on = !sessions.empty() && random() % 2 == 0;
    const size_t which = goes_on ? random() % sessions.size() : 0;
    if (goes_on)
      pages = sessions[which];
    else
      for (uint32_t k = 0; k < 4; ++k) pages.push_back((i % 4) * 4 + k);  // a shared prompt
    for (uint32_t k = 0; k < 12; ++k) pages.push_back(next_page++);
    if (goes_on && random() % 3 == 0)
      sessions.erase(sessions.begin() + static_cast<std::ptrdiff_t>(which));
    else if (goes_on)
      sessions[which] = pages;
    else if (random() % 3 == 0)
      sessions.push_back(pages);
    requests.push_back({pages, std::vector<uint8_t>(pages.size(), static_cast<uint8_t>(Keep::kNormal))});
  }
  return requests;
}

TEST(the_default_is_about_as_good_as_the_best_and_makes_hardly_any_holes) {
  const std::vector<Request> trace = made_up_trace(11, 4000);
  constexpr uint32_t kPages = 1200;
  std::map<std::string, uint64_t> prefix;
  for (const char* policy : {"lru", "lrfu", "2q", "interval", "adaptive"}) {
    const Hits hits = replay::Store(policy, kPages).play(trace);
    CHECK((hits.blocks - hits.prefix) * 100 <= hits.blocks * 3);
    prefix[policy] = hits.prefix;
  }
  uint64_t best = 0;
  for (const auto& [policy, hits] : prefix) best = std::max(best, hits);
  CHECK(prefix["adaptive"] * 100 >= best * 93);
  CHECK(prefix["adaptive"] > prefix["lru"]);
  CHECK(replay::clairvoyant(trace, kPages).blocks > best);
}

TEST(the_store_hits_as_its_policy_alone_does) {
  const std::vector<Request> trace = made_up_trace(12, 1500);
  for (const char* policy : {"lru", "adaptive"}) {
    const Hits store = replay::Store(policy, 1200).play(trace);
    const Hits ranked = replay::Ranked(policy, 1200).play(trace);
    CHECK(store.blocks * 100 > ranked.blocks * 96 && ranked.blocks * 100 > store.blocks * 96);
  }
}

TEST_MAIN()
