#include <random>

#include "check.hpp"
#include "segment/eviction/adaptive_policy.hpp"
#include "segment/eviction/policy_fixture.hpp"

using namespace kvstore;
using testing::PlayedCache;

static double patience(const AdaptivePolicy& policy) {
  return AdaptivePolicy::kCandidates[policy.ruling()].patience;
}
static double trust(const AdaptivePolicy& policy) {
  return AdaptivePolicy::kCandidates[policy.ruling()].trust;
}

// Each object is used once more, a little after it came, and never after that: what came back is of no use.
static void use_what_is_new(PlayedCache& cache, uint32_t objects, uint32_t room, uint64_t first) {
  const uint64_t later = room * 4 / 10;
  for (uint64_t i = first; i < first + objects; ++i) {
    cache.access(i);
    if (i >= first + later) cache.access(i - later);
  }
}

// Half of what is used comes again and again, after more than the room of others.
static void use_what_comes_back(PlayedCache& cache, uint32_t rounds, uint32_t room, uint64_t first) {
  uint64_t once = first + (1ull << 32);
  for (uint32_t round = 0; round < rounds; ++round)
    for (uint64_t object = first; object < first + room / 2; ++object) {
      cache.access(object);
      for (int i = 0; i < 5; ++i) cache.access(once++);
    }
}

TEST(the_policy_changes_over_when_the_load_does_and_back) {
  for (const uint32_t room : {1500u, 30000u}) {  // the larger one is sampled
    AdaptivePolicy policy(room);
    PlayedCache cache(policy, room);
    use_what_comes_back(cache, 12, room, 0);
    const double patient = patience(policy);
    CHECK(patient >= 5);
    use_what_is_new(cache, 25 * room, room, 1ull << 40);
    CHECK(patience(policy) < patient);
    use_what_comes_back(cache, 20, room, 1ull << 50);
    CHECK(patience(policy) >= 5);
  }
}

// Prefixes of which half come back; what is asked for them is right or wrong.
static uint32_t hits_with(bool right, double* trusted) {
  constexpr uint32_t kRoom = 2000, kPages = 20;
  AdaptivePolicy policy(kRoom);
  PlayedCache cache(policy, kRoom);
  std::mt19937_64 random(7);
  std::vector<uint64_t> waiting;
  uint32_t hits = 0;
  uint64_t next = 0;
  for (int i = 0; i < 6000; ++i) {
    const bool comes_back = random() % 2 == 0;
    cache.access_prefix(next, 0, kPages, comes_back == right ? Keep::kWanted : Keep::kDemoted);
    if (comes_back) waiting.push_back(next);
    ++next;
    if (waiting.size() > 20) {  // for the last time
      hits += cache.access_prefix(waiting.front(), 0, kPages, right ? Keep::kDemoted : Keep::kWanted);
      waiting.erase(waiting.begin());
    }
  }
  *trusted = trust(policy);
  return hits;
}

TEST(hints_are_trusted_while_they_are_right_and_ignored_when_they_are_wrong) {
  double trusted = 0;
  const uint32_t right = hits_with(true, &trusted);
  CHECK(trusted >= 1);  // demoting at least
  const uint32_t wrong = hits_with(false, &trusted);
  CHECK(trusted < 1);
  CHECK(right > wrong);
}

TEST(an_object_that_is_removed_leaves_the_shadows_too) {
  AdaptivePolicy policy(100);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t slot = 0; slot < 100; ++slot) policy.on_insert({slot, slot + 1u, 1, 0, Keep::kNormal});
    for (uint32_t slot = 0; slot < 100; ++slot) policy.on_remove(slot);
    for (size_t i = 0; i < AdaptivePolicy::kCandidates.size(); ++i) CHECK_EQ(policy.shadow_objects(i), 0u);
  }
}

TEST_MAIN()
