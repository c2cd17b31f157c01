// Objects of a pool that another table has left.
#include <cstring>
#include <string>
#include <vector>

#include "check.hpp"
#include "segment/table_fixture.hpp"

using namespace kvstore;
using kvstore::testing::kNs;
using kvstore::testing::Table;

namespace {

constexpr uint64_t kCapacity = 1 << 20;

ObjectTable::Options kept_options() {
  ObjectTable::Options options = Table::options(kCapacity, kCapacity);
  options.kept = true;
  return options;
}

// Takes over all that can be; returns how many.
uint32_t adopt_all(ObjectTable& objects) {
  while (objects.adopt_next_chunk()) {
  }
  uint32_t adopted = 0;
  const SlotTable& slots = objects.slot_table();
  for (uint32_t chunk = 0; chunk < slots.chunks_end(); ++chunk)
    for (uint32_t place = 1; slots.has_chunk(chunk) && place < slots.places(chunk); ++place) {
      const SlotHeader& h = slots.header(slot_at(chunk, place));
      if (h.state != SlotState::kSealed) continue;
      adopted += objects.adopt(slot_at(chunk, place),
                               fingerprint(fingerprint_salt(h.ns, h.pool, h.shard), h.hash.data()), h.seq);
    }
  objects.end_adoption();
  return adopted;
}

bool has(ObjectTable& objects, int i) {
  return objects.find(Table::fp(Table::key(i)), Table::key(i)) != kNoSlot;
}

}  // namespace

TEST(another_table_takes_all_objects_over_and_goes_on_with_the_room_that_is_left) {
  Table t(kCapacity);
  for (int i = 0; i < 400; ++i)
    CHECK(t.add(i, kNs, 1000) != kNoSlot);  // more than the first chunk has slots for
  CHECK(t.objects.slot_table().chunks_end() > 5);
  for (int i = 0; i < 400; i += 4) t.objects.remove(t.objects.occupant(Table::fp(Table::key(i))), ++t.seq);
  t.hold(1);
  t.objects.remove(t.objects.occupant(Table::fp(Table::key(1))),
                   ++t.seq);                         // its readers are gone with the process
  t.objects.reserve(Table::key(1000), 1000, 0, {});  // and so is this one's writer
  const uint32_t slot_before = t.objects.occupant(Table::fp(Table::key(3)));
  const uint64_t generation = t.objects.header(slot_before).generation.load();

  ObjectTable objects(t.memory.get(), kept_options());
  CHECK_EQ(adopt_all(objects), 299u);
  for (int i = 0; i < 400; ++i) CHECK_EQ(has(objects, i), i % 4 != 0 && i != 1);
  CHECK_EQ(objects.object_count(), 299u);
  CHECK_EQ(objects.used_bytes(), t.objects.used_bytes() - 2 * ExtentAllocator::rounded(1000));
  CHECK_EQ(objects.wire_number(objects.occupant(Table::fp(Table::key(3)))),
           t.objects.wire_number(slot_before));
  CHECK_EQ(objects.header(objects.occupant(Table::fp(Table::key(3)))).generation.load(), generation);
  CHECK(objects.seq(objects.occupant(Table::fp(Table::key(3)))) == 4);
  int more = 0;
  for (;; ++more) {
    const auto reserved = objects.reserve(Table::key(2000 + more), 1000, 0, {});
    if (reserved.slot == kNoSlot) break;
    CHECK(objects.seal(reserved.slot, Table::fp(Table::key(2000 + more)), 1, 0, 5000).has_value());
  }
  CHECK(more > 500);
  for (int i = 0; i < more; ++i) CHECK(has(objects, 2000 + i));
  std::vector<JournalEntry> removed;
  objects.evict(kCapacity, 100000, 1, 0, 6000, removed);
  CHECK_EQ(objects.object_count(), 0u);
  CHECK_EQ(objects.misuse_count(), uint64_t{0});
}

TEST(a_header_that_contradicts_itself_or_another_costs_its_own_slot) {
  struct Damage {
    size_t byte;
    uint8_t bit;
  };
  for (const Damage damage : {Damage{0, 1}, Damage{8, 4}, Damage{12, 2}, Damage{14, 64}, Damage{17, 2},
                              Damage{22, 1}, Damage{27, 32}, Damage{92, 1}}) {
    Table t(kCapacity);
    for (int i = 0; i < 20; ++i) t.add(i, kNs, 1000);
    const uint32_t victim = t.objects.occupant(Table::fp(Table::key(7)));
    t.memory[t.objects.wire_number(victim) * sizeof(SlotHeader) + damage.byte] ^= damage.bit;
    ObjectTable objects(t.memory.get(), kept_options());
    CHECK_EQ(adopt_all(objects), 19u);
    // A wrong place that its bytes could lie at: only their digest tells whose they are, which is looked at before.
    const bool plausible = damage.byte == 17;
    for (int i = 0; i < 20; ++i) CHECK(has(objects, i) == (i != 7) || plausible);
    for (int i = 100; i < 400; ++i) {  // its slot, and what it took, are used again
      const auto reserved = objects.reserve(Table::key(i), 1000, 0, {});
      CHECK(reserved.slot != kNoSlot);
    }
    CHECK_EQ(objects.damaged_count(), 0u);
  }
}

TEST(a_damaged_chunk_header_costs_the_chunks_from_there_on_and_a_running_table_nothing) {
  Table t(kCapacity);
  for (int i = 0; i < 300; ++i) CHECK(t.add(i, kNs, 1000) != kNoSlot);
  const uint64_t second = t.objects.slot_table().chunk_offset(1);
  for (const size_t byte : {0, 9, 16, 18}) t.memory[second + byte] ^= 0x40;
  for (int i = 300; i < 350; ++i) CHECK(t.add(i, kNs, 1000) != kNoSlot);
  for (int i = 0; i < 350; ++i) CHECK(t.has(i));
  for (int i = 0; i < 350; ++i) t.objects.remove(t.objects.occupant(Table::fp(Table::key(i))), ++t.seq);
  CHECK_EQ(t.objects.damaged_count(), 0u);
  CHECK_EQ(t.objects.misuse_count(), uint64_t{0});

  Table other(kCapacity);
  for (int i = 0; i < 300; ++i) CHECK(other.add(i, kNs, 1000) != kNoSlot);
  other.memory[other.objects.slot_table().chunk_offset(2)] ^= 1;
  ObjectTable objects(other.memory.get(), kept_options());
  const uint32_t adopted = adopt_all(objects);
  CHECK_EQ(adopted, Table::kSlots + other.objects.slot_table().places(1) - 1);
  while (objects.reserve(Table::key(static_cast<int>(1000 + objects.writing_count())), 1000, 0, {}).slot !=
         kNoSlot) {
  }
  CHECK(objects.free_bytes() < 10000);  // what the lost chunks held is room now
}

TEST(a_pool_without_a_first_chunk_is_refused) {
  Table t(kCapacity);
  t.memory[SlotTable::kFirstChunkOffset] ^= 1;
  CHECK_THROWS(ObjectTable(t.memory.get(), kept_options()), std::invalid_argument);
}

TEST_MAIN()
