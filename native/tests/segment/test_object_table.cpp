#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "segment/table_fixture.hpp"

using namespace kvstore;
using kvstore::testing::kObject;
using kvstore::testing::Table;

// Another hash that has the same fingerprint as this one: the fold of all bytes can be undone.
static PageHash with_same_fingerprint(const PageHash& hash) {
  uint64_t w[4];
  std::memcpy(w, hash.data(), sizeof(w));
  const auto folded = [&] { return mix64(w[2] + mix64(w[3])); };
  const uint64_t a = folded(), b = w[1] ^ mix64(w[3] + a);
  w[3] ^= 1;
  w[1] = b ^ mix64(w[3] + folded());
  w[0] ^= a ^ folded();
  PageHash other;
  std::memcpy(other.data(), w, sizeof(w));
  return other;
}

TEST(a_slot_of_a_namespace_that_holds_none_is_refused_and_nothing_happens) {
  NamespaceTable table(1);
  table.add_chunk(0, 8);
  const NamespaceId held{1}, other{2};
  table.add(0, held);
  CHECK(!table.remove(0, other));
  CHECK_EQ(table.populated().size(), size_t{1});
  CHECK(table.remove(0, held));
  CHECK(!table.remove(0, held));
  CHECK(table.populated().empty());
}

TEST(what_is_being_written_is_not_found_and_gives_its_memory_back_when_abandoned) {
  Table t;
  const uint32_t slot = t.objects.reserve(Table::key(1), kObject, 0, "its text").slot;
  CHECK(slot != kNoSlot);
  CHECK(!t.has(1));
  CHECK(t.objects.used_bytes() > kObject);  // the text lies behind the bytes
  CHECK(std::memcmp(t.objects.data(slot) + kObject, "its text", 8) == 0);
  t.objects.abandon(slot);
  CHECK_EQ(t.objects.used_bytes(), uint64_t{0});
  t.objects.abandon(slot);
  CHECK_EQ(t.objects.misuse_count(), uint64_t{1});
  CHECK_EQ(t.objects.used_bytes(), uint64_t{0});
}

TEST(sealed_objects_are_found_by_their_whole_key_only) {
  Table t;
  const uint32_t slot = t.add(1);
  CHECK(t.has(1));
  Key liar = Table::key(1);
  liar.hash = with_same_fingerprint(liar.hash);
  CHECK(Table::fp(liar) == Table::fp(Table::key(1)));
  CHECK_EQ(t.objects.find(Table::fp(liar), liar), kNoSlot);
  CHECK_EQ(t.objects.occupant(Table::fp(liar)), slot);
}

TEST(of_two_writers_of_one_object_the_second_seals_nothing_and_gives_its_memory_back) {
  Table t;
  const Key key = Table::key(1);
  const uint32_t first = t.objects.reserve(key, kObject, 0, {}).slot;
  const uint32_t second = t.objects.reserve(key, kObject, 0, {}).slot;
  CHECK(t.objects.seal(first, Table::fp(key), 1, 0, 1).has_value());
  CHECK(!t.objects.seal(second, Table::fp(key), 1, 0, 2).has_value());
  CHECK_EQ(t.objects.find(Table::fp(key), key), first);
  CHECK_EQ(t.objects.used_bytes(), kObject);
  CHECK_EQ(t.objects.misuse_count(), uint64_t{1});
}

TEST(eviction_takes_the_least_recently_used_first) {
  Table t;
  for (int i = 0; i < 10; ++i) t.add(i);
  CHECK_EQ(t.add(10), kNoSlot);
  t.objects.use(t.objects.occupant(Table::fp(Table::key(0))), Table::fp(Table::key(0)));
  const auto removed = t.evict(2 * kObject);
  CHECK_EQ(removed.size(), size_t{2});
  CHECK(removed[0].op == JournalOp::kRemove && removed[0].fp == Table::fp(Table::key(1)) &&
        removed[0].ns == testing::kNs);
  CHECK(t.has(0) && !t.has(1) && !t.has(2) && t.has(3));
  CHECK(t.add(10) != kNoSlot);
}

TEST(a_use_of_an_object_that_is_gone_ranks_nothing) {
  Table t;
  const uint32_t slot = t.add(0);
  for (int i = 1; i < 4; ++i) t.add(i);
  t.objects.use(slot, Table::fp(Table::key(7)));  // another one's, that was in this slot before
  t.objects.use(slot_at(9, 1), Table::fp(Table::key(7)));
  CHECK_EQ(t.evict(kObject).size(), size_t{1});
  CHECK(!t.has(0));
  t.objects.use(slot, Table::fp(Table::key(0)));
  CHECK_EQ(t.objects.misuse_count(), uint64_t{0});
}

TEST(pinned_objects_and_ones_being_read_are_never_evicted) {
  Table t;
  std::vector<uint32_t> slots;
  for (int i = 0; i < 10; ++i) slots.push_back(t.add(i));
  for (int i = 0; i < 4; ++i) CHECK(t.pin(i, 1, 1000));
  for (int i = 4; i < 8; ++i) t.hold(i);
  CHECK_EQ(t.evict(100 * kObject).size(), size_t{2});
  for (int i = 0; i < 8; ++i) CHECK(t.has(i));
  for (int i = 4; i < 8; ++i) CHECK(!t.unhold(slots[i]));
  CHECK_EQ(t.evict(100 * kObject, 1000).size(), size_t{4});  // readers left, pins run to 1001
  CHECK_EQ(t.evict(100 * kObject, 1001).size(), size_t{4});
  CHECK_EQ(t.objects.used_bytes(), uint64_t{0});
}

TEST(a_bounded_scan_gets_past_pinned_objects_in_the_end) {
  Table t;
  std::vector<uint32_t> slots;
  for (int i = 0; i < 10; ++i) slots.push_back(t.add(i));
  for (int i = 0; i < 5; ++i) t.pin(i, 1, 1000);
  CHECK_EQ(t.evict(kObject, 1, 3).size(), size_t{0});
  CHECK_EQ(t.evict(kObject, 1, 3).size(), size_t{1});
}

TEST(a_removed_object_keeps_its_bytes_until_its_last_reader_leaves) {
  Table t;
  const uint32_t slot = t.add(1);
  t.hold(1);
  t.hold(1);
  const uint64_t generation = t.objects.header(slot).generation.load();
  CHECK(t.objects.remove(slot, 2).op == JournalOp::kRemove);
  CHECK(!t.has(1));
  CHECK(!t.unhold(slot));
  CHECK_EQ(t.objects.header(slot).generation.load(), generation);
  CHECK_EQ(t.objects.used_bytes(), kObject);
  CHECK(t.unhold(slot));
  CHECK_EQ(t.objects.used_bytes(), uint64_t{0});
  CHECK(t.objects.header(slot).generation.load() > generation);
  CHECK(!t.unhold(slot));
  CHECK_EQ(t.objects.misuse_count(), uint64_t{1});
}

TEST(a_quarantined_slot_is_not_found_and_its_memory_never_comes_back) {
  Table t;
  const uint32_t slot = t.add(1);
  t.hold(1);
  const auto removed = t.objects.quarantine(slot, 2);
  CHECK(removed && removed->op == JournalOp::kRemove && removed->fp == Table::fp(Table::key(1)));
  CHECK(!t.objects.quarantine(slot, 2));
  t.unhold(slot);
  CHECK(!t.has(1));
  CHECK_EQ(t.objects.header(slot).state, SlotState::kQuarantined);
  t.evict(100 * kObject);
  CHECK_EQ(t.objects.used_bytes(), kObject);
  CHECK_EQ(t.objects.quarantined_count(), 1u);
  for (int i = 2; i < 11; ++i) CHECK(t.add(i) != kNoSlot);
  CHECK_EQ(t.add(11), kNoSlot);
}

TEST(objects_of_retired_namespaces_go_first_whatever_pins_they_have) {
  Table t;
  const NamespaceId old{'o'};
  for (int i = 0; i < 3; ++i) t.add(i);
  for (int i = 3; i < 6; ++i) {
    t.add(i, old);
    t.pin(i, 1, 60000, old);
  }
  t.objects.retire(old);
  std::vector<JournalEntry> listed;
  CHECK_EQ(t.objects.list(0, t.objects.slots_end(), 100, listed), t.objects.slots_end());
  CHECK_EQ(listed.size(), size_t{3});
  const auto removed = t.evict(3 * kObject);
  CHECK_EQ(removed.size(), size_t{3});
  for (const JournalEntry& e : removed) CHECK(e.ns == old);
  for (int i = 0; i < 3; ++i) CHECK(t.has(i));
  CHECK_EQ(t.objects.shards().pinned_bytes(), uint64_t{0});
}

TEST(objects_are_listed_in_slot_order_from_any_slot_and_no_more_than_asked_for) {
  Table t;
  std::vector<uint32_t> slots;
  for (int i = 0; i < 5; ++i) slots.push_back(t.add(i));
  t.objects.remove(slots[2], 6);
  std::vector<JournalEntry> listed;
  const uint32_t next = t.objects.list(0, t.objects.slots_end(), 3, listed);
  CHECK_EQ(next, slots[3] + 1);
  CHECK_EQ(listed.size(), size_t{3});
  CHECK(listed[2].fp == Table::fp(Table::key(3)) && listed[2].op == JournalOp::kAdd);
  CHECK_EQ(t.objects.list(next, t.objects.slots_end(), 100, listed), t.objects.slots_end());
  CHECK_EQ(listed.size(), size_t{4});
  CHECK_EQ(t.objects.list(5, 5, 100, listed), 5u);
}

TEST(only_so_many_retired_namespaces_are_remembered_and_current_ones_come_back) {
  NamespaceTable table(1);
  table.add_chunk(0, 8);
  const auto ns = [](uint32_t i) {
    NamespaceId id{};
    std::memcpy(id.data(), &i, sizeof(i));
    return id;
  };
  for (uint32_t i = 0; i < RetiredNamespaces::kRetiredMax + 3; ++i) table.retire(ns(i));
  CHECK(!table.is_retired(ns(2)) && table.is_retired(ns(3)));
  table.add(0, ns(900000));
  table.add(1, ns(900001));
  table.add(2, ns(900002));
  table.set_current({ns(900000), ns(5)}, table.populated());
  CHECK(!table.is_retired(ns(5)) && !table.is_retired(ns(900000)) && table.is_retired(ns(900001)));
  CHECK(table.is_retired(ns(900002)));
  table.set_current({ns(900000), ns(900002)}, {ns(900000), ns(900001)});
  CHECK_EQ(table.retired_slot(), 1u);
  table.set_current({ns(900000), ns(900001)}, {});  // what is not known is left as it is
  CHECK(!table.is_retired(ns(900002)));
  CHECK_EQ(table.retired_slot(), kNoSlot);
}

TEST_MAIN()
