#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "check.hpp"
#include "segment/slot_table.hpp"

using namespace kvstore;

constexpr uint64_t kHead = SlotTable::kFirstChunkOffset;
constexpr uint64_t kChunk = 5 * sizeof(SlotHeader);  // its own header, and those of slots 1 to 4

struct Fixture {
  alignas(64) uint8_t memory[kHead + 16 * kChunk] = {};
  SlotTable table{memory, kChunk, 4, false};
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
    CHECK(f.table.seal(2, 1, 0xABCD, 99));
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
  CHECK(f.table.seal(1, 1, 0xCAFEBABE, 99));
  const uint8_t* at = f.memory + kHead + 128;
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
  CHECK_EQ(int{at[92]}, 0);
  CHECK_EQ(u32(96), 99u);
  f.table.set_removed(1, 0x0102030405);
  CHECK_EQ(int{at[92]}, 1);
  CHECK_EQ(u32(96), 0x02030405u);
  CHECK_EQ(u32(100), 1u);
}

TEST(a_chunk_begins_with_a_header_that_says_how_long_it_is_and_where_the_next_one_lies) {
  Fixture f;
  const auto u64 = [&](uint64_t offset) {
    uint64_t value;
    std::memcpy(&value, f.memory + offset, sizeof(value));
    return value;
  };
  CHECK(std::memcmp(f.memory + kHead, "CHNK\1\0", 6) == 0);
  CHECK_EQ(u64(kHead + 8), kChunk);
  CHECK_EQ(u64(kHead + 16), uint64_t{0});
  CHECK_EQ(f.table.add_chunk(kHead + 3 * kChunk, kChunk), 1u);
  CHECK_EQ(f.table.add_chunk(kHead + 8 * kChunk, 2 * kChunk), 2u);
  CHECK_EQ(u64(kHead + 16), kHead + 3 * kChunk);
  CHECK_EQ(u64(kHead + 3 * kChunk + 16), kHead + 8 * kChunk);
  CHECK_EQ(u64(kHead + 8 * kChunk + 8), 2 * kChunk);
  CHECK_EQ(f.table.places(2), 10u);
  CHECK_EQ(f.table.wire_number(slot_at(2, 3)), static_cast<uint32_t>((kHead + 8 * kChunk) / 128 + 3));
  f.table.remove_chunk(1);
  CHECK(!f.table.has_chunk(1) && f.table.has_chunk(2));
  CHECK_EQ(u64(kHead + 16), kHead + 8 * kChunk);
  CHECK_EQ(f.table.add_chunk(kHead + 3 * kChunk, kChunk), 1u);  // its number is free again
  CHECK_EQ(f.table.add_chunk(kHead + 12 * kChunk, kChunk), 3u);
  CHECK_EQ(f.table.add_chunk(kHead + 14 * kChunk, kChunk), kChunksMax);  // no more than it was made for
}

TEST(what_is_no_chunk_is_not_taken_for_one) {
  Fixture f;
  const uint64_t end = sizeof(f.memory);
  CHECK(SlotTable::is_chunk(f.memory, end, kHead));
  CHECK(!SlotTable::is_chunk(f.memory, end, kHead + 1));
  CHECK(!SlotTable::is_chunk(f.memory, end, kHead + 128));
  CHECK(!SlotTable::is_chunk(f.memory, end, end));
  CHECK(!SlotTable::is_chunk(f.memory, end, UINT64_MAX - 127));
  CHECK(!SlotTable::is_chunk(f.memory, kHead + kChunk - 128, kHead));  // longer than the map
  for (const size_t byte : {0, 4, 8, 15}) {
    f.memory[kHead + byte] ^= 0x10;
    CHECK(!SlotTable::is_chunk(f.memory, end, kHead));
    f.memory[kHead + byte] ^= 0x10;
  }
}

// A reader may look at a header's place after the chunk was given back and made again.
TEST(the_slots_of_a_chunk_that_is_made_again_have_other_generations) {
  Fixture f;
  const uint32_t chunk = f.table.add_chunk(kHead + 3 * kChunk, kChunk), slot = slot_at(chunk, 2);
  CHECK(f.table.begin_write(slot, f.key, 4096, 1000, 0, 0));
  CHECK(f.table.seal(slot, 1, 0, 99));
  const uint64_t generation = f.table.header(slot).generation.load();
  f.table.remove_chunk(chunk);
  CHECK_EQ(f.table.add_chunk(kHead + 3 * kChunk, kChunk), chunk);
  CHECK(f.table.begin_write(slot, f.key, 4096, 1000, 0, 0));
  CHECK(f.table.seal(slot, 1, 0, 99));
  CHECK(f.table.header(slot).generation.load() != generation);
  CHECK(Fixture().table.header(1).generation.load() != Fixture().table.header(1).generation.load());
}

TEST(illegal_transitions_are_refused_and_change_nothing) {
  Fixture f;
  const auto refuses_all_but = [&](const char* allowed) {
    const uint64_t before = f.table.header(4).generation.load();
    const std::string name(allowed);
    if (name.find('w') == std::string::npos) CHECK(!f.table.begin_write(4, f.key, 0, 1, 0, 0));
    if (name.find('s') == std::string::npos) CHECK(!f.table.seal(4, 1, 0, 99));
    if (name.find('q') == std::string::npos) CHECK(!f.table.quarantine(4));
    if (name.find('f') == std::string::npos) CHECK(!f.table.free(4));
    CHECK_EQ(f.table.header(4).generation.load(), before);
  };
  refuses_all_but("w");
  CHECK(f.table.begin_write(4, f.key, 0, 1, 0, 0));
  refuses_all_but("sf");
  CHECK(f.table.seal(4, 1, 0, 99));
  refuses_all_but("qf");
  CHECK(f.table.quarantine(4));
  refuses_all_but("");
}

TEST(a_damaged_header_is_never_touched) {
  Fixture f;
  CHECK(f.table.begin_write(3, f.key, 0, 1, 0, 0));
  f.memory[kHead + 3 * 128 + 8] ^= 1;
  CHECK(!f.table.seal(3, 1, 0, 99));
  CHECK_EQ(f.table.header(3).state, SlotState::kWriting);
}

TEST(a_condemned_slot_looks_like_one_being_changed_for_ever) {
  Fixture f;
  CHECK(f.table.begin_write(3, f.key, 0, 1, 0, 0));
  f.memory[kHead + 3 * 128 + 8] ^= 1;
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
      for (int i = 0; i < 1000 && !seen; ++i) seen = f.table.header(4).generation.load() % 2 != 0;
  });
  while (!seen && std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 1000; ++i) {
      CHECK(f.table.begin_write(4, f.key, 4096, 1000, 0, 0));
      CHECK(f.table.free(4));
    }
  reader.join();
  CHECK(seen);
}

TEST_MAIN()
