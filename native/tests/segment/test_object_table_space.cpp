// Room in the table: chunks of slots that come and go, and windows of addresses.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "check.hpp"
#include "segment/table_fixture.hpp"

using namespace kvstore;
using kvstore::testing::kNs;
using kvstore::testing::Table;

namespace {

constexpr uint64_t kMiB = 1 << 20;

ObjectTable::WindowSearch searched(Table& t, uint64_t size_bytes, uint64_t now_ms = 1) {
  ObjectTable::WindowSearch search;
  search.size_bytes = size_bytes;
  for (int steps = 0; !t.objects.search_window(search, now_ms); ++steps) CHECK(steps < 10000);
  return search;
}

// The names of what a window took away, or nothing when it was lost.
std::set<uint64_t> cleared(Table& t, ObjectTable::Window window, uint64_t now_ms = 1) {
  std::vector<JournalEntry> removed;
  ObjectTable::Cleared state;
  do {
    state = t.objects.clear_window(window, now_ms, t.seq + 1, removed);
  } while (state == ObjectTable::Cleared::kMore);
  t.seq += removed.size();
  CHECK_EQ(state, ObjectTable::Cleared::kDone);
  std::set<uint64_t> names;
  for (const JournalEntry& entry : removed) names.insert(entry.fp.lo);
  CHECK_EQ(names.size(), removed.size());
  return names;
}

uint64_t free_sum(const Table& t) { return t.objects.capacity_bytes() - t.objects.used_bytes(); }

}  // namespace

TEST(slots_come_by_chunks_of_the_pool_and_go_when_nothing_is_in_them) {
  Table t(kMiB);
  const uint32_t first = t.objects.slot_count();
  CHECK_EQ(first, Table::kSlots);
  std::vector<int> names;
  while (t.add(static_cast<int>(names.size()), kNs, 10) != kNoSlot)
    names.push_back(static_cast<int>(names.size()));
  // What an object takes is its bytes, its slot, and no more: a unit of 64, a header of 128.
  CHECK(names.size() > kMiB / (64 + 128) * 97 / 100);
  CHECK(t.objects.slot_count() >= names.size());
  CHECK(free_sum(t) < t.objects.chunk_bytes());
  for (const int name : names) CHECK(t.has(name));
  for (const int name : names) t.objects.remove(t.objects.occupant(Table::fp(Table::key(name))), ++t.seq);
  CHECK_EQ(t.objects.object_count(), 0u);
  CHECK(t.objects.slot_count() < first + 2 * (t.objects.chunk_bytes() / sizeof(SlotHeader)));
  CHECK(t.objects.used_bytes() <= t.objects.chunk_bytes());  // half a chunk of slots is kept at hand
  CHECK_EQ(t.objects.misuse_count(), uint64_t{0});
}

TEST(random_sizes_that_come_and_go_keep_slots_extents_and_index_in_step) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  Table t(4 * kMiB, kMiB);
  std::set<int> names;
  uint64_t now = 1;
  for (int step = 0; step < 20000; ++step) {
    now += rng() % 20;
    const int name = static_cast<int>(rng() % 5000);
    const uint32_t sizes[] = {1 + rng() % 300, 1 + rng() % 5000, 1 + rng() % 200000};
    const bool small_ones = step / 4000 % 2 == 0;  // then few and large, so that chunks come and go
    if (rng() % 4 == 0 && t.has(name)) {
      t.objects.remove(t.objects.occupant(Table::fp(Table::key(name))), ++t.seq);
    } else if (!t.has(name)) {
      if (t.add(name, kNs, sizes[small_ones ? 0 : 1 + rng() % 2]) == kNoSlot)
        t.evict(1 + rng() % 100000, now);
    } else if (rng() % 8 == 0) {
      t.pin(name, now, 1 + rng() % 1000);
    }
  }
  for (int name = 0; name < 5000; ++name)
    if (t.has(name)) names.insert(name);
  CHECK_EQ(size_t{t.objects.object_count()}, names.size());
  std::vector<JournalEntry> listed;
  t.objects.list(0, t.objects.slots_end(), 1 << 20, listed);
  CHECK_EQ(listed.size(), names.size());
  // Nothing overlaps, and the books agree.
  std::vector<std::pair<uint64_t, uint64_t>> extents;
  uint64_t bytes = 0;
  for (const int name : names) {
    const uint32_t slot = t.objects.occupant(Table::fp(Table::key(name)));
    extents.emplace_back(t.objects.offset(slot), ExtentAllocator::rounded(t.objects.length(slot)));
    bytes += extents.back().second;
  }
  std::sort(extents.begin(), extents.end());
  for (size_t i = 1; i < extents.size(); ++i)
    CHECK(extents[i - 1].first + extents[i - 1].second <= extents[i].first);
  CHECK(t.objects.used_bytes() >= bytes);
  t.evict(8 * kMiB, now + 100000, 100000);
  CHECK_EQ(t.objects.object_count(), 0u);
  CHECK(t.objects.used_bytes() <= 2 * t.objects.chunk_bytes());
  CHECK_EQ(t.objects.misuse_count(), uint64_t{0});
  CHECK_EQ(t.objects.writing_count(), 0u);
}

TEST(a_window_takes_what_was_used_longest_ago_and_leaves_the_rest) {
  Table t(4 * kMiB);
  int names = 0;
  while (t.add(names, kNs, 4096) != kNoSlot) ++names;
  // All but the objects of one stretch are used again.
  std::set<uint64_t> cold;
  for (int name = 0; name < names; ++name) {
    const Fingerprint fp = Table::fp(Table::key(name));
    if (name >= names / 2 && name < names / 2 + 300)  // with chunks of slots in between
      cold.insert(fp.lo);
    else
      t.objects.use(t.objects.occupant(fp), fp);
  }
  const auto search = searched(t, 64 * 4096);
  CHECK(search.best.has_value());
  const std::set<uint64_t> gone = cleared(t, *search.best);
  CHECK_EQ(gone.size(), size_t{64});
  for (const uint64_t name : gone) CHECK(cold.count(name) == 1);
  CHECK(t.add(names, kNs, 64 * 4096) != kNoSlot);
  CHECK_EQ(t.objects.object_count(), static_cast<uint32_t>(names - 64 + 1));
}

TEST(where_every_window_has_something_pinned_or_read_there_is_none_and_nothing_goes) {
  Table t(kMiB, kMiB);
  int names = 0;
  while (t.add(names, kNs, 4096) != kNoSlot) ++names;
  for (int name = 0; name < names; name += 8) {
    if (name % 16 == 0)
      CHECK(t.pin(name, 1, 1000));
    else
      t.hold(name);
  }
  CHECK(!searched(t, 8 * 4096).best.has_value());
  const auto smaller = searched(t, 7 * 4096);
  CHECK(smaller.best.has_value());
  CHECK_EQ(cleared(t, *smaller.best).size(), size_t{7});
  CHECK_EQ(t.objects.object_count(), static_cast<uint32_t>(names - 7));
}

TEST(a_window_over_several_regions_is_found_where_it_exists) {
  constexpr uint64_t kRegion = AddressMap::kRegionBytes;
  Table t(8 * kRegion, 8 * kRegion);
  int names = 0;
  while (t.add(names, kNs, kRegion / 4) != kNoSlot) ++names;
  CHECK_EQ(names, 32);
  CHECK(t.pin(3, 1, 1000));                  // [3/4, 1) of the first region
  CHECK(t.pin(24, 1, 1000));                 // the first quarter of the last one but one
  for (int round = 0; round < 8; ++round) {  // wherever the search begins
    const auto search = searched(t, 5 * kRegion);
    CHECK(search.best.has_value());
    if (search.best) CHECK_EQ(search.best->begin, kRegion);
    CHECK(!searched(t, 5 * kRegion + 64).best.has_value());
  }
  CHECK_EQ(cleared(t, *searched(t, 5 * kRegion).best).size(), size_t{20});
}

TEST(what_a_window_has_cleared_is_nobody_elses_until_it_is_whole_or_given_up) {
  constexpr uint64_t kRegion = AddressMap::kRegionBytes;
  Table t(4 * kRegion, 4 * kRegion);
  int names = 0;
  while (t.add(names, kNs, kRegion / 4) != kNoSlot) ++names;
  ObjectTable::Window window = *searched(t, 3 * kRegion).best;
  std::vector<JournalEntry> removed;
  CHECK_EQ(t.objects.clear_window(window, 1, 100, removed), ObjectTable::Cleared::kMore);
  CHECK(!removed.empty());
  CHECK_EQ(t.add(1000, kNs, 1000), kNoSlot);
  t.hold(static_cast<int>(window.begin / (kRegion / 4)) + 11);  // the last one in it
  ObjectTable::Cleared state = ObjectTable::Cleared::kMore;
  while (state == ObjectTable::Cleared::kMore) state = t.objects.clear_window(window, 1, 200, removed);
  CHECK_EQ(state, ObjectTable::Cleared::kLost);
  CHECK(t.add(1000, kNs, 1000) != kNoSlot);
  CHECK_EQ(t.objects.object_count() + removed.size(), static_cast<size_t>(names) + 1);
  CHECK_EQ(t.objects.misuse_count(), uint64_t{0});
}

TEST(retained_objects_are_the_last_to_be_in_a_window) {
  Table t(kMiB);
  int names = 0;
  while (t.add(names, kNs, 4096) != kNoSlot) ++names;
  for (int name = 0; name < names; ++name)
    if (name < 40 || name >= 72)
      CHECK(t.objects.keep(t.objects.occupant(Table::fp(Table::key(name))), {wire::Intent::kRetain, 60'000},
                           1));
  const auto search = searched(t, 16 * 4096);
  CHECK(search.best.has_value());
  for (const uint64_t name : cleared(t, *search.best)) {
    bool kept_normal = false;
    for (int i = 40; i < 72; ++i) kept_normal |= Table::fp(Table::key(i)).lo == name;
    CHECK(kept_normal);
  }
}

TEST(a_window_takes_no_page_before_what_hangs_on_it_even_where_that_is_cheaper) {
  constexpr int kPages = 24;
  Table t(kMiB);
  // A chain whose head lies right before its tail, as when the second half reserves first; then others.
  std::vector<uint32_t> slots(kPages);
  for (const int first : {kPages / 2, 0})
    for (int page = first; page < first + kPages / 2; ++page)
      slots[page] = t.objects.reserve(Table::key(page), 4096, static_cast<uint32_t>(page), {}).slot;
  for (const int first : {kPages / 2, 0}) {
    t.objects.begin_seals();
    for (int page = first + kPages / 2; page-- > first;)
      CHECK(t.objects.seal(slots[page], Table::fp(Table::key(page)), 1, 0, ++t.seq));
  }
  int names = kPages;
  while (t.add(names, kNs, 4096) != kNoSlot) ++names;
  // Its last page goes. The hole is one unit too short for what comes, and before the head.
  int left = kPages;
  t.objects.remove(t.objects.occupant(Table::fp(Table::key(--left))), ++t.seq);
  for (int round = 0; round < 40 && t.objects.object_count() > 4; ++round) {
    const auto search = searched(t, 4096 + 64);
    CHECK(search.best.has_value());
    cleared(t, *search.best);
    CHECK(t.add(1000 + round, kNs, 4096 + 64) != kNoSlot);
    // What is left of the chain is its beginning.
    while (left > 0 && !t.has(left - 1)) --left;
    for (int page = 0; page < left; ++page) CHECK(t.has(page));
  }
  CHECK(left < kPages - 2);  // it does go, from its end
}

TEST(a_head_that_everything_else_in_reach_is_worth_more_than_goes_all_the_same) {
  Table t(kMiB);
  std::vector<uint32_t> slots;
  for (uint32_t slot; (slot = t.objects
                                  .reserve(Table::key(static_cast<int>(slots.size())), 4096,
                                           static_cast<uint32_t>(slots.size()), {})
                                  .slot) != kNoSlot;)
    slots.push_back(slot);
  for (size_t page = slots.size(); page-- > 0;)
    CHECK(t.objects.seal(slots[page], Table::fp(Table::key(static_cast<int>(page))), 1, 0, ++t.seq));
  const int last = static_cast<int>(slots.size()) - 1;
  CHECK(t.pin(last, 1, 1000));  // the only page that nothing hangs on
  const auto search = searched(t, 4096);
  CHECK(search.best.has_value());
  CHECK_EQ(cleared(t, *search.best).size(), size_t{1});
}

TEST(objects_of_an_open_batch_are_neither_evicted_nor_in_a_window) {
  Table t(kMiB);
  const uint32_t own = t.objects.batches().open(1), other = t.objects.batches().open(1);
  int names = 0;
  for (uint32_t slot; (slot = t.add(names, kNs, 4096)) != kNoSlot; ++names)
    t.objects.set_batch(slot, names % 2 == 0 ? own : other);
  CHECK_EQ(t.evict(kMiB, 1, 10000, own).size(), size_t{0});
  CHECK(t.last.spared > 0);  // the other's may go later
  CHECK(!searched(t, 4096).best.has_value());
  t.objects.batches().close(other);
  CHECK_EQ(t.evict(kMiB, 1, 10000, own).size(), static_cast<size_t>(names / 2));
  CHECK_EQ(t.evict(kMiB, 1, 10000, own).size(), size_t{0});
  CHECK_EQ(t.last.spared, 0u);  // nobody will leave anything before this batch is over
  t.objects.batches().close(own);
  CHECK_EQ(t.evict(kMiB, 1, 10000).size(), static_cast<size_t>(names - names / 2));
}

TEST_MAIN()
