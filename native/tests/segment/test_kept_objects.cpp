// What becomes of objects in a store that is flooded, by what was wanted of them.
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "segment/object_fixture.hpp"
#include "segment/segment_store.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Status;

namespace {

constexpr uint32_t kLength = 8192;
constexpr uint64_t kPool = 1u << 20;  // 128 objects
constexpr NamespaceId kOtherNs = {'n', 'a', 'm', 'e', 's', 'p', 'c', '2'};
constexpr wire::KeepWish kRetain{wire::Intent::kRetain, 60'000}, kDemote{wire::Intent::kDemote, 0},
    kNormal{wire::Intent::kNormal, 0};

SegmentStoreOptions options(double all = 0.5, double one = 0.25) {
  SegmentStoreOptions options = small_store(kPool);
  options.retained_fraction_max = all;
  options.retained_namespace_fraction_max = one;
  return options;
}

std::vector<std::string> names(const std::string& prefix, int count) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.push_back(prefix + std::to_string(i));
  return out;
}

void put_all(SegmentStore& store, const std::vector<std::string>& keys, const NamespaceId& ns = kNs) {
  for (const std::string& key : keys) CHECK_EQ(put_one(store, key, kLength, ns), Status::kOk);
}

// As put_all, as one chain whose first page is at `depth`. What is done behind a put with a wish is the session's.
void put_chain(SegmentStore& store, const std::vector<std::string>& keys, uint32_t depth,
               const wire::KeepWish& wish = {}) {
  const Keys block(keys);
  const Put put(block, kLength);
  std::vector<uint32_t> depths;
  while (depths.size() < keys.size()) depths.push_back(depth++);
  PutRequest request = put.request();
  request.depths = reinterpret_cast<const uint8_t*>(depths.data());
  request.has_intent = wish.intent != wire::Intent::kNormal;
  request.keep = wish;
  std::vector<WriteEntry> writes(keys.size());
  store.reserve_writes(request, 0, static_cast<uint32_t>(keys.size()),
                       SegmentStore::Clock::now() + std::chrono::seconds(1), kNever, writes);
  store.seal_writes(request, writes);
  for (const WriteEntry& write : writes) CHECK_EQ(write.status, Status::kOk);
}

// Three times the pool.
void flood(SegmentStore& store, const NamespaceId& ns = kNs) {
  static int number = 0;
  for (int i = 0; i < 3 * static_cast<int>(kPool / kLength); ++i)
    CHECK_EQ(put_one(store, "flood " + std::to_string(number++), kLength, ns), Status::kOk);
}

int left_of(SegmentStore& store, const std::vector<std::string>& keys, const NamespaceId& ns = kNs) {
  int left = 0;
  const Keys block(keys, ns);
  for (const uint8_t status : store.pin(block.block(), 0)) left += status == 0;  // no use of them
  return left;
}

std::vector<uint8_t> all(Status status, size_t count) {
  return std::vector<uint8_t>(count, static_cast<uint8_t>(status));
}

}  // namespace

TEST(a_retained_chain_outlives_a_flood_that_takes_what_is_as_old) {
  SegmentStore store(options());
  const auto chain = names("kept ", 20), others = names("other ", 20);
  put_all(store, chain);
  put_all(store, others);
  CHECK(store.keep(Keys(chain).block(), kRetain) == all(Status::kOk, 20));
  flood(store);
  CHECK_EQ(left_of(store, chain), 20);
  CHECK_EQ(left_of(store, others), 0);
  CHECK_EQ(store.stats().at("retained_objects"), uint64_t{20});
  CHECK(store.keep(Keys(chain).block(), kNormal) == all(Status::kOk, 20));
  flood(store);
  CHECK_EQ(left_of(store, chain), 0);
  CHECK_EQ(store.stats().at("retained_bytes"), uint64_t{0});
}

TEST(demoted_objects_go_before_all_others_and_those_used_since_do_not) {
  SegmentStore store(options());
  const auto old = names("old ", 20), demoted = names("demoted ", 20), used = names("used ", 5);
  put_all(store, old);
  put_all(store, demoted);
  put_all(store, used);
  CHECK(store.keep(Keys(demoted).block(), kDemote) == all(Status::kOk, 20));
  CHECK(store.keep(Keys(used).block(), kDemote) == all(Status::kOk, 5));
  for (const std::string& key : used) CHECK_EQ(get_one(store, key), Status::kOk);
  store.evict_bytes(20 * kLength);
  CHECK_EQ(left_of(store, demoted), 0);
  CHECK_EQ(store.stats().at("demoted_objects"), uint64_t{0});
  CHECK_EQ(left_of(store, old), 20);
  CHECK_EQ(left_of(store, used), 5);
}

TEST(what_comes_with_a_wish_is_ranked_by_it_before_another_put_needs_space) {
  SegmentStore store(options());
  const auto old = names("old ", 20), demoted = names("demoted ", 20);
  put_all(store, old);
  put_chain(store, demoted, 0, kDemote);
  store.evict_bytes(20 * kLength);
  CHECK_EQ(left_of(store, demoted), 0);
  CHECK_EQ(left_of(store, old), 20);
}

TEST(what_lies_right_before_a_chain_that_was_wanted_just_now_is_not_demoted) {
  SegmentStore store(options());
  const auto old = names("old ", 20), head = names("head ", 20), middle = names("middle ", 20),
             tail = names("tail ", 20);
  put_all(store, old);
  put_chain(store, head, 0);
  put_chain(store, middle, 20);
  put_chain(store, tail, 40);
  CHECK(store.keep(Keys(tail).block(), kRetain) == all(Status::kOk, 20));
  CHECK(store.keep(Keys(middle).block(), kDemote) == all(Status::kNoSpace, 20));
  CHECK(store.keep(Keys(head).block(), kDemote) == all(Status::kNoSpace, 20));
  CHECK_EQ(store.stats().at("demoted_objects"), uint64_t{0});
  CHECK_EQ(store.stats().at("demotions_contradicted"), uint64_t{40});
  store.evict_bytes(20 * kLength);
  CHECK_EQ(left_of(store, old), 0);
  CHECK_EQ(left_of(store, head), 20);
}

TEST(a_demotion_that_contradicts_nothing_is_heeded_behind_a_retention) {
  SegmentStore store(options());
  const auto head = names("head ", 10), tail = names("tail ", 10), theirs = names("theirs ", 10);
  put_chain(store, head, 0);
  put_chain(store, tail, 10);
  put_all(store, theirs, kOtherNs);
  const Keys before(head), almost_before({head.begin(), head.begin() + 9}), behind(tail);
  CHECK(store.keep(before.block(), kRetain) == all(Status::kOk, 10));
  CHECK(store.keep(behind.block(), kDemote) == all(Status::kOk, 10));
  CHECK(store.keep(behind.block(), kRetain) == all(Status::kOk, 10));
  CHECK(store.keep(behind.block(), kDemote) == all(Status::kOk, 10));  // the last wish counts
  CHECK(store.keep(before.block(), kDemote) == all(Status::kOk, 10));
  CHECK(store.keep(behind.block(), kRetain) == all(Status::kOk, 10));
  CHECK(store.keep(almost_before.block(), kDemote) == all(Status::kOk, 9));
  CHECK(store.keep(before.block(), kDemote) == all(Status::kOk, 10));
  // Of as many pages, in a namespace that wants nothing.
  put_all(store, head, kOtherNs);
  CHECK(store.keep(behind.block(), kRetain) == all(Status::kOk, 10));
  CHECK(store.keep(Keys(head, kOtherNs).block(), kDemote) == all(Status::kOk, 10));
}

TEST(of_a_chain_that_does_not_fit_the_budget_the_head_is_retained) {
  SegmentStore store(options(0.5, 0.125));  // 16 objects
  const auto chain = names("chain ", 40);
  put_all(store, chain);
  const auto statuses = store.keep(Keys(chain).block(), kRetain);
  for (size_t i = 0; i < chain.size(); ++i)
    CHECK_EQ(unsigned{statuses[i]}, static_cast<unsigned>(i < 16 ? Status::kOk : Status::kNoSpace));
  CHECK_EQ(store.stats().at("retentions_refused"), uint64_t{24});
  flood(store);
  CHECK_EQ(left_of(store, chain), 16);
  CHECK_EQ(left_of(store, {chain.begin(), chain.begin() + 16}), 16);
  // The same again is the same: what is retained takes no second share.
  CHECK(store.keep(Keys({chain.begin(), chain.begin() + 16}).block(), kRetain) == all(Status::kOk, 16));
}

TEST(of_a_chain_that_is_over_the_budget_the_tail_goes_first) {
  SegmentStoreOptions weighing = options(0, 0);
  weighing.eviction_policy = "interval";
  SegmentStore store(weighing);
  const auto chain = names("wanted ", 40);
  put_all(store, chain);
  CHECK(store.keep(Keys(chain).block(), kRetain) == all(Status::kNoSpace, 40));
  store.evict_bytes(20 * kLength);
  CHECK_EQ(left_of(store, {chain.begin(), chain.begin() + 20}), 20);
}

TEST(a_namespace_that_retains_everything_keeps_no_other_out) {
  SegmentStore store(options(0.5, 0.5));
  const auto greedy = names("greedy ", 120), modest = names("modest ", 30);
  put_all(store, greedy);
  store.keep(Keys(greedy).block(), kRetain);
  put_all(store, modest, kOtherNs);
  CHECK_EQ(left_of(store, modest, kOtherNs), 30);
  CHECK(left_of(store, greedy) <= 98);
  // Even that which is retained goes before a put finds no space.
  SegmentStore full(options(1, 1));
  put_all(full, greedy);
  CHECK(full.keep(Keys(greedy).block(), kRetain) == all(Status::kOk, 120));
  put_all(full, modest, kOtherNs);
}

TEST(a_retention_whose_time_is_over_is_none) {
  SegmentStore store(options());
  const auto chain = names("short ", 10);
  put_all(store, chain);
  CHECK(store.keep(Keys(chain).block(), {wire::Intent::kRetain, 1}) == all(Status::kOk, 10));
  const auto until = SegmentStore::Clock::now() + std::chrono::seconds(20);
  while (store.stats().at("retained_objects") > 0 && SegmentStore::Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_EQ(store.stats().at("retentions_expired"), uint64_t{10});
  flood(store);
  CHECK_EQ(left_of(store, chain), 0);
}

TEST(a_removed_or_cleared_object_takes_its_intent_with_it) {
  SegmentStore store(options());
  const auto chain = names("gone ", 10), cleared = names("cleared ", 10);
  put_all(store, chain);
  put_all(store, cleared, kOtherNs);
  store.keep(Keys(chain).block(), kRetain);
  store.keep(Keys(cleared, kOtherNs).block(), kRetain);
  store.remove(Keys(chain).block());
  CHECK_EQ(store.stats().at("retained_objects"), uint64_t{10});
  store.retire_namespace(kOtherNs);
  CHECK(store.keep(Keys(cleared, kOtherNs).block(), kRetain) == all(Status::kMiss, 10));
  store.evict_bytes(10 * kLength);
  CHECK_EQ(store.stats().at("retained_objects"), uint64_t{0});
  put_all(store, chain);
  flood(store);
  CHECK_EQ(left_of(store, chain), 0);
}

TEST(what_is_not_here_is_a_miss_and_the_rest_of_its_chain_is_kept) {
  SegmentStore store(options());
  put_all(store, {"a", "c"});
  const auto statuses = store.keep(Keys({"a", "b", "c"}).block(), kRetain);
  CHECK(statuses == std::vector<uint8_t>({0, static_cast<uint8_t>(Status::kMiss), 0}));
}

TEST(an_operator_s_wish_is_for_fingerprints_or_for_all_of_a_namespace) {
  SegmentStore store(options());
  const auto mine = names("mine ", 10), theirs = names("theirs ", 10);
  put_all(store, mine);
  put_all(store, theirs, kOtherNs);
  const std::vector<Fingerprint> fps = Keys(mine).block().fingerprints();
  const auto some = store.keep_objects(kNs, {fps[0], fps[1], {1, 2}}, kRetain);
  CHECK_EQ(some.kept, uint64_t{2});
  CHECK_EQ(some.missing, uint64_t{1});
  CHECK_EQ(store.keep_objects(kOtherNs, {fps[0]}, kRetain).missing, uint64_t{1});
  const auto rest = store.keep_namespace(kOtherNs, kDemote);
  CHECK_EQ(rest.kept, uint64_t{10});
  CHECK_EQ(store.stats().at("demoted_objects"), uint64_t{10});
  store.evict_bytes(10 * kLength);
  CHECK_EQ(left_of(store, mine), 10);
  CHECK_EQ(left_of(store, theirs, kOtherNs), 0);
  const auto [accounts, limits] = store.retention();
  CHECK_EQ(accounts.size(), size_t{1});
  CHECK_EQ(accounts[0].retained_objects, uint64_t{2});
  CHECK_EQ(limits.namespace_bytes_max, kPool / 4);
}

TEST_MAIN()
