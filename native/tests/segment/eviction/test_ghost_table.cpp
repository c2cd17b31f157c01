#include "check.hpp"
#include "protocol/keys.hpp"
#include "segment/eviction/ghost_table.hpp"

using namespace kvstore;

TEST(ghosts_of_five_times_as_many_objects_are_found_once_with_their_memory) {
  constexpr uint32_t kObjects = 10000;
  GhostTable table;
  table.make_room(kObjects);
  uint32_t now = 0;
  for (uint64_t id = 0; id < kObjects * 5; ++id) table.put(id, id % 128, ++now);
  uint32_t found = 0, strange = 0;
  for (uint64_t id = 0; id < kObjects * 5; ++id) {
    const auto ghost = table.take(id, now);
    found += ghost && ghost->memory == id % 128;
    strange += table.take(id, now).has_value();
  }
  CHECK(found > kObjects * 5 * 98 / 100);
  CHECK(strange < kObjects * 5 / 200);
}

TEST(the_oldest_ghosts_go_first) {
  constexpr uint32_t kObjects = 10000;
  GhostTable table;
  table.make_room(kObjects);
  uint32_t now = 0;
  for (uint64_t id = 0; id < kObjects * 20; ++id) table.put(id, 1, ++now);
  CHECK(table.size() <= kObjects * 5 + kObjects);
  uint32_t old = 0, young = 0;
  for (uint64_t id = 0; id < kObjects; ++id) {
    old += table.take(id, now).has_value();
    young += table.take(kObjects * 20 - 1 - id, now).has_value();
  }
  CHECK(old < kObjects / 100);
  CHECK(young > kObjects * 98 / 100);
}

TEST(a_ghost_tells_about_how_long_ago_it_was_made) {
  GhostTable table;
  table.make_room(1000);
  table.put(1, 5, 0xFFFFF000u);  // times wrap around
  const auto ghost = table.take(1, 0xFFFFF000u + 10000);
  CHECK(ghost && ghost->gap > 9800 && ghost->gap < 10200);
}

TEST(however_long_nothing_came_or_went_the_next_step_is_a_short_one_and_finds_no_ghost) {
  GhostTable table;
  table.make_room(16);  // whose ticks are single uses
  table.put(1, 5, 1);
  for (uint32_t step = 1; step < 60; ++step)
    CHECK(!table.take(1, 1 + step * 0xFFF00001u));  // each nearly as many ticks as there are
  table.put(2, 5, 7);
  CHECK(table.take(2, 8));
}

TEST(a_table_without_room_remembers_nothing) {
  GhostTable table;
  table.put(1, 1, 1);
  CHECK(!table.take(1, 2));
}

TEST_MAIN()
