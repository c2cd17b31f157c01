#include <string>
#include <vector>

#include "check.hpp"
#include "segment/table_fixture.hpp"

using namespace kvstore;
using kvstore::testing::kObject;
using kvstore::testing::Table;

namespace {

constexpr NamespaceId kOne{1}, kTwo{2}, kOther{3};

// What goes for the first group over its limit.
std::vector<JournalEntry> evict_over_quota(Table& t, uint64_t coming_bytes = 0, uint64_t now_ms = 1,
                                           uint32_t own_batch = 0) {
  std::vector<JournalEntry> removed;
  NamespaceQuotas::Group* const group =
      coming_bytes == 0 ? t.objects.quotas().over_limit() : t.objects.quotas().over_limit(kOne, coming_bytes);
  if (group == nullptr) return removed;
  t.last = t.objects.evict_over_quota(*group, coming_bytes, 1000, now_ms, own_batch, t.seq + 1, removed);
  t.seq += removed.size();
  return removed;
}

}  // namespace

TEST(bytes_of_a_namespace_count_from_when_they_are_reserved_until_they_are_not_found_any_more) {
  Table t;
  const NamespaceQuotas& quotas = t.objects.quotas();
  const uint32_t given_up = t.objects.reserve(Table::key(1, kOne), kObject, 0, {}).slot;
  CHECK_EQ(quotas.bytes(kOne), kObject);
  t.objects.abandon(given_up);
  CHECK_EQ(quotas.bytes(kOne), uint64_t{0});
  const uint32_t slot = t.add(2, kOne);
  CHECK_EQ(quotas.bytes(kOne), kObject);
  t.add(3, kTwo, 100);
  CHECK_EQ(quotas.bytes(kTwo), uint64_t{100});
  t.objects.remove(slot, ++t.seq);
  CHECK_EQ(quotas.bytes(kOne), uint64_t{0});
  const uint32_t bad = t.add(4, kOne);
  CHECK(t.objects.quarantine(bad, ++t.seq).has_value());
  CHECK_EQ(quotas.bytes(kOne), uint64_t{0});
  t.evict(UINT64_MAX);
  CHECK_EQ(quotas.bytes(kTwo), uint64_t{0});
}

TEST(a_namespace_over_its_limit_gives_up_its_own_the_longest_unused_first) {
  Table t;
  t.add(0, kOther);
  for (int i = 1; i <= 5; ++i) t.add(i, kOne);
  t.objects.quotas().set({{3 * kObject, {kOne}}});
  t.objects.use(t.objects.find(Table::fp(Table::key(1, kOne)), Table::key(1, kOne)),
                Table::fp(Table::key(1, kOne)));
  CHECK_EQ(evict_over_quota(t).size(), size_t{2});
  CHECK(t.has(0, kOther) && t.has(1, kOne) && !t.has(2, kOne) && !t.has(3, kOne) && t.has(5, kOne));
  CHECK(t.objects.quotas().over_limit() == nullptr);
  // One more object takes the place of one.
  CHECK(t.objects.quotas().over_limit(kOther, kObject) == nullptr);
  CHECK_EQ(evict_over_quota(t, kObject).size(), size_t{1});
  CHECK(!t.has(4, kOne));
}

TEST(journal_numbers_of_what_goes_follow_each_other) {
  Table t;
  for (int i = 1; i <= 5; ++i) t.add(i, kOne);
  t.objects.quotas().set({{kObject, {kOne}}});
  std::vector<JournalEntry> removed(2);  // of something else, numbered already
  t.objects.evict_over_quota(*t.objects.quotas().over_limit(), 0, 2, 1, 0, 8, removed);
  CHECK_EQ(removed.size(), size_t{4});
  CHECK(removed[2].fp == Table::fp(Table::key(1, kOne)) && removed[3].op == JournalOp::kRemove);
}

TEST(a_group_of_namespaces_has_one_limit_and_a_namespace_may_be_in_two_groups) {
  Table t;
  for (int i = 1; i <= 3; ++i) t.add(i, kOne), t.add(i, kTwo);
  t.objects.quotas().set({{4 * kObject, {kOne, kTwo}}, {kObject, {kTwo, kTwo}}});
  CHECK_EQ(t.objects.quotas().group_count(), size_t{2});
  CHECK_EQ(evict_over_quota(t).size(), size_t{2});
  CHECK(!t.has(1, kOne) && !t.has(1, kTwo) && t.has(2, kOne) && t.has(2, kTwo));
  CHECK_EQ(evict_over_quota(t).size(), size_t{1});
  CHECK(!t.has(2, kTwo) && t.has(3, kTwo) && t.has(2, kOne));
  t.objects.quotas().set({});
  CHECK(!t.objects.quotas().is_limited(kOne));
  CHECK_EQ(t.objects.quotas().bytes(kOne), 2 * kObject);
}

TEST(what_is_pinned_or_of_an_open_batch_stays_and_what_is_retained_goes_last) {
  Table t;
  for (int i = 1; i <= 4; ++i) t.add(i, kOne);
  t.pin(1, 1, 1000, kOne);
  const auto slot = [&](int i) {
    return t.objects.find(Table::fp(Table::key(i, kOne)), Table::key(i, kOne));
  };
  CHECK(t.objects.keep(slot(2), {wire::Intent::kRetain, 1000}, 1));
  t.objects.quotas().set({{2 * kObject, {kOne}}});
  CHECK_EQ(evict_over_quota(t).size(), size_t{2});
  CHECK(t.has(1, kOne) && t.has(2, kOne));
  t.objects.quotas().set({{0, {kOne}}});
  CHECK_EQ(evict_over_quota(t).size(), size_t{1});
  CHECK(t.has(1, kOne) && !t.has(2, kOne));
  CHECK(t.last.exhausted && t.last.blocked > 0);
  CHECK_EQ(evict_over_quota(t, 0, 5000).size(), size_t{0} + 1);  // the pin has run out
  CHECK_EQ(t.objects.quotas().bytes(kOne), uint64_t{0});
}

TEST(what_an_open_batch_has_brought_stays_until_the_batch_is_over) {
  Table t;
  PutBatches& batches = t.objects.batches();
  const uint32_t batch = batches.open(1);
  CHECK(batches.begin_request(batch, 1));
  t.objects.set_batch(t.add(1, kOne), batch);
  t.add(2, kOne);
  t.objects.quotas().set({{0, {kOne}}});
  CHECK_EQ(evict_over_quota(t, 0, 1, batch).size(), size_t{1});
  CHECK(t.has(1, kOne) && !t.has(2, kOne));
  batches.close(batch);
  CHECK_EQ(evict_over_quota(t).size(), size_t{1});
}

TEST(a_group_of_many_namespaces_finds_its_objects_whichever_have_them) {
  Table t;
  std::vector<NamespaceId> members;
  for (uint8_t i = 10; i < 210; ++i) members.push_back(NamespaceId{i});
  t.add(1, members[199]);
  t.add(2, members[100]);
  t.objects.quotas().set({{0, members}});
  CHECK_EQ(evict_over_quota(t).size(), size_t{2});
}

TEST_MAIN()
