#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "check.hpp"
#include "segment/slot_table.hpp"

using namespace kvstore;

struct Fixture {
  alignas(64) uint8_t memory[4 * sizeof(SlotHeader)] = {};
  SlotTable table{memory, 4};
  Key key{{1, 2, 3, 4, 5, 6, 7, 8}, 9, kWholeShard, {42}};
};

TEST(a_slot_goes_through_its_life_and_its_generation_never_goes_back) {
  Fixture f;
  uint64_t last = f.table.header(2).generation.load();
  const auto moved_on = [&](SlotState state) {
    const SlotHeader& h = f.table.header(2);
    CHECK_EQ(h.state, state);
    CHECK_EQ(h.generation.load() % 2, uint64_t{0});
    CHECK(h.generation.load() > last);
    last = h.generation.load();
  };
  for (int round = 0; round < 3; ++round) {
    CHECK(f.table.begin_write(2, f.key, 4096, 1000, 5, 77));
    moved_on(SlotState::kWriting);
    CHECK(f.table.seal(2, 1, 0xABCD));
    moved_on(SlotState::kSealed);
    CHECK(f.table.free(2));
    moved_on(SlotState::kFree);
  }
  CHECK(f.table.begin_write(2, f.key, 4096, 1000, 5, 77));
  moved_on(SlotState::kWriting);
  CHECK(f.table.free(2));
  moved_on(SlotState::kFree);
}

TEST(the_header_lies_in_memory_as_the_protocol_says) {
  Fixture f;
  CHECK(f.table.begin_write(1, f.key, 0x1122334455667788, 0x01020304, 0x0506, 0x0708090A));
  CHECK(f.table.seal(1, 1, 0xCAFEBABE));
  const uint8_t* at = f.memory + 128;
  const auto u16 = [&](size_t offset) { return at[offset] | at[offset + 1] << 8; };
  const auto u32 = [&](size_t offset) {
    return static_cast<uint32_t>(u16(offset)) | static_cast<uint32_t>(u16(offset + 2)) << 16;
  };
  CHECK_EQ(u32(8), 0x544F4C53u);
  CHECK_EQ(u16(12), 1);
  CHECK_EQ(int{at[14]}, 2);
  CHECK_EQ(int{at[15]}, 1);
  CHECK_EQ(u32(16), 0x55667788u);
  CHECK_EQ(u32(20), 0x11223344u);
  CHECK_EQ(u32(24), 0x01020304u);
  CHECK_EQ(u32(28), 0xCAFEBABEu);
  CHECK_EQ(u32(32), 0x0708090Au);
  CHECK_EQ(u16(36), 0x0506);
  CHECK_EQ(u16(38), 9);
  CHECK_EQ(int{at[40]}, 1);
  CHECK_EQ(int{at[60]}, 42);
}

TEST(illegal_transitions_are_refused_and_change_nothing) {
  Fixture f;
  const auto refuses_all_but = [&](const char* allowed) {
    const uint64_t before = f.table.header(0).generation.load();
    const std::string name(allowed);
    if (name.find('w') == std::string::npos) CHECK(!f.table.begin_write(0, f.key, 0, 1, 0, 0));
    if (name.find('s') == std::string::npos) CHECK(!f.table.seal(0, 1, 0));
    if (name.find('q') == std::string::npos) CHECK(!f.table.quarantine(0));
    if (name.find('f') == std::string::npos) CHECK(!f.table.free(0));
    CHECK_EQ(f.table.header(0).generation.load(), before);
  };
  refuses_all_but("w");
  CHECK(f.table.begin_write(0, f.key, 0, 1, 0, 0));
  refuses_all_but("sf");
  CHECK(f.table.seal(0, 1, 0));
  refuses_all_but("qf");
  CHECK(f.table.quarantine(0));
  refuses_all_but("");
}

TEST(a_damaged_header_is_never_touched) {
  Fixture f;
  CHECK(f.table.begin_write(3, f.key, 0, 1, 0, 0));
  f.memory[3 * 128 + 8] ^= 1;
  CHECK(!f.table.seal(3, 1, 0));
  CHECK_EQ(f.table.header(3).state, SlotState::kWriting);
}

TEST(a_condemned_slot_looks_like_one_being_changed_for_ever) {
  Fixture f;
  CHECK(f.table.begin_write(3, f.key, 0, 1, 0, 0));
  f.memory[3 * 128 + 8] ^= 1;
  f.table.condemn(3);
  CHECK_EQ(f.table.header(3).generation.load() % 2, uint64_t{1});
  f.table.condemn(3);
  CHECK_EQ(f.table.header(3).generation.load() % 2, uint64_t{1});
  CHECK(!f.table.free(3));
}

// What a reader in another process goes by: it must be able to see that the header is just changing.
TEST(the_generation_is_odd_while_a_slot_changes) {
  Fixture f;
  std::atomic<bool> seen{false};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::thread reader([&] {
    while (!seen && std::chrono::steady_clock::now() < end)
      for (int i = 0; i < 1000 && !seen; ++i) seen = f.table.header(0).generation.load() % 2 != 0;
  });
  while (!seen && std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 1000; ++i) {
      CHECK(f.table.begin_write(0, f.key, 4096, 1000, 0, 0));
      CHECK(f.table.free(0));
    }
  reader.join();
  CHECK(seen);
}

TEST_MAIN()
