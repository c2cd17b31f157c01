// Slot headers lie in shared memory and can be damaged. Whatever one holds, what the store took away is journalled, what was
// reserved or held is given back, and the process lives.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "check.hpp"
#include "segment/data_port/holds.hpp"
#include "segment/object_fixture.hpp"
#include "segment/segment_store.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Status;

constexpr uint32_t kLength = 5000;
constexpr int kObjects = 50;
constexpr int kVictim = 20;

// One bit of each field that the table works with.
struct Damage {
  const char* name;
  size_t byte;
  uint8_t bit;
};
constexpr Damage kDamages[] = {
    {"generation", 0, 1},         {"magic", 8, 4},
    {"version", 12, 2},           {"state to free", 14, 2},
    {"state to nothing", 14, 64}, {"offset by a little", 17, 2},
    {"offset by far", 22, 1},     {"length", 24, 1},
    {"length by much", 27, 32},   {"text_bytes", 37, 128},
    {"namespace", 41, 8},
};

static std::vector<std::string> names() {
  std::vector<std::string> all;
  for (int i = 0; i < kObjects; ++i) all.push_back("object " + std::to_string(i));
  return all;
}

static Fingerprint fingerprint_of(const std::string& name) { return Keys({name}).block().fingerprints()[0]; }

struct Store {
  Store() : store(small_store(2 << 20)) {
    for (const std::string& name : names()) CHECK_EQ(put_one(store, name, kLength), Status::kOk);
    store.journal().ack(store.journal().last_seq());
  }
  uint32_t slot_of(const std::string& name) {
    const auto* headers =
        reinterpret_cast<const SlotHeader*>(store.pool().base());  // finding it is no use of it
    uint32_t slot = SlotTable::kFirstChunkOffset / sizeof(SlotHeader) + 1;
    while (!(headers[slot].hash == string_hash(name))) ++slot;
    return slot;
  }
  void damage(uint32_t slot, const Damage& d) {
    store.pool().base()[slot * sizeof(SlotHeader) + d.byte] ^= d.bit;
  }

  using Removed = std::set<std::pair<NamespaceId, std::pair<uint64_t, uint64_t>>>;
  // The namespace and fingerprint of all REMOVEs journalled.
  Removed removed() {
    Removed all;
    while (const auto batch = store.journal().drain(1000)) {
      wire::Reader reader(batch->groups.data(), batch->groups.size());
      while (reader.left() > 0) {
        const auto op = static_cast<JournalOp>(reader.u8("op"));
        reader.bytes(3, "reserved");
        const uint32_t count = reader.u32("count");
        NamespaceId ns;
        std::memcpy(ns.data(), reader.bytes(ns.size(), "ns"), ns.size());
        for (uint32_t i = 0; i < count; ++i) {
          Fingerprint fp;
          std::memcpy(&fp, reader.bytes(sizeof(fp), "fingerprint"), sizeof(fp));
          if (op == JournalOp::kRemove) all.insert({ns, {fp.lo, fp.hi}});
        }
        reader.bytes(size_t{count} * 4, "lengths");
      }
    }
    return all;
  }
  bool is_removed(const std::string& name) {
    const Fingerprint fp = fingerprint_of(name);
    return journalled.count({kNs, {fp.lo, fp.hi}}) == 1;
  }
  // Every object is either readable or reported as removed.
  void check_nothing_is_lost(const char* what) {
    const auto more = removed();
    journalled.insert(more.begin(), more.end());
    int wrong = 0;
    for (const std::string& name : names())
      wrong += (get_one(store, name) == Status::kOk) == is_removed(name);
    if (wrong != 0) std::fprintf(stderr, "with damage to %s:\n", what);
    CHECK_EQ(wrong, 0);
    CHECK_EQ(put_one(store, std::string("after ") + what, kLength), Status::kOk);
    CHECK_EQ(get_one(store, std::string("after ") + what), Status::kOk);
    CHECK_EQ(store.stats().at("bookkeeping_errors"), uint64_t{0});
  }
  void check_damage_is_counted() {
    CHECK_EQ(store.stats().at("damaged_slots"), uint64_t{1});
    CHECK_EQ(store.stats().at("quarantined_slots"), uint64_t{1});
  }

  SegmentStore store;
  Removed journalled;
};

static const std::string kVictimName = "object " + std::to_string(kVictim);

// With each kind of damage to the victim's header.
static void with_each_damage(const std::function<void(Store&, uint32_t, const Damage&)>& body) {
  for (const Damage& damage : kDamages) {
    Store s;
    body(s, s.slot_of(kVictimName), damage);
  }
}

TEST(remove_reports_every_object_of_a_batch_with_a_damaged_one) {
  with_each_damage([](Store& s, uint32_t victim, const Damage& damage) {
    s.damage(victim, damage);
    // A damaged namespace makes it another key's object: it is not found, and stays.
    const auto [statuses, seq] = s.store.remove(Keys(names()).block());
    CHECK_EQ(std::count(statuses.begin(), statuses.end(), 0), damage.byte == 41 ? kObjects - 1 : kObjects);
    CHECK_EQ(seq, s.store.journal().last_seq());
    s.store.evict_bytes(4 << 20);
    const auto removed = s.removed();
    CHECK_EQ(removed.size(), size_t{kObjects});
    s.check_damage_is_counted();
    CHECK_EQ(s.store.stats().at("object_count"), uint64_t{0});
    CHECK_EQ(s.store.stats().at("used_bytes"), ExtentAllocator::rounded(kLength));  // never used again
    CHECK_EQ(put_one(s.store, kVictimName, kLength), Status::kOk);
    CHECK_EQ(get_one(s.store, kVictimName), Status::kOk);
  });
}

TEST(eviction_reports_every_object_and_goes_on_past_a_damaged_one) {
  with_each_damage([](Store& s, uint32_t victim, const Damage& damage) {
    s.damage(victim, damage);
    // The victim is neither the first nor the last one that goes.
    CHECK(s.store.evict_bytes(uint64_t{40} * kLength) >= uint64_t{40} * kLength);
    const auto removed = s.removed();
    s.journalled = removed;
    CHECK(removed.size() >= 40);
    CHECK(s.is_removed(kVictimName));
    s.check_damage_is_counted();
    s.check_nothing_is_lost(damage.name);
  });
}

TEST(a_reader_that_leaves_a_removed_object_with_a_damaged_header_harms_nobody) {
  with_each_damage([](Store& s, uint32_t victim, const Damage& damage) {
    std::vector<ReadEntry> reads = s.store.acquire_reads(Keys(names()).block(), nullptr);
    s.store.remove(Keys(names()).block());
    s.damage(victim, damage);
    {
      SessionHolds holds(s.store);  // gives back when it ends, as a connection does
      holds.add(1, reads, SegmentStore::Clock::now());
    }
    CHECK_EQ(s.removed().size(), size_t{kObjects});
    s.check_damage_is_counted();
    CHECK_EQ(s.store.stats().at("used_bytes"), ExtentAllocator::rounded(kLength));
  });
}

TEST(bytes_are_never_read_from_where_a_damaged_header_points) {
  with_each_damage([](Store& s, uint32_t victim, const Damage& damage) {
    s.damage(victim, damage);
    const std::vector<ReadEntry> reads = s.store.acquire_reads(Keys({kVictimName}).block(), nullptr);
    if (reads[0].status == Status::kOk) {
      CHECK_EQ(reads[0].length, kLength);
      CHECK(std::memcmp(reads[0].data, content(kVictimName, kLength).data(), kLength) == 0);
    }
    s.store.release_reads(reads);
    CHECK(s.store.verify(Keys({kVictimName}).block())[0] != static_cast<uint8_t>(Status::kDigestMismatch));
  });
}

TEST(a_quarantine_of_a_damaged_slot_is_reported) {
  with_each_damage([](Store& s, uint32_t victim, const Damage& damage) {
    if (damage.byte == 41) return;  // another key's object, to whom it may concern
    s.store.pool().base()[s.store.acquire_reads(Keys({kVictimName}).block(), nullptr)[0].offset] ^= 1;
    s.damage(victim, damage);
    CHECK_EQ(s.store.verify(Keys({kVictimName}).block())[0], static_cast<uint8_t>(Status::kDigestMismatch));
    s.journalled = s.removed();
    CHECK(s.is_removed(kVictimName));
    s.check_damage_is_counted();
    CHECK_EQ(get_one(s.store, kVictimName), Status::kMiss);
  });
}

// `end` ends a put whose second entry's header is damaged while it is written.
static void with_a_damaged_write(
    const std::function<void(Store&, const Put&, std::vector<WriteEntry>&)>& end) {
  with_each_damage([&](Store& s, uint32_t, const Damage& damage) {
    const Keys keys({"first", "second", "third"});
    const Put put(keys, kLength);
    std::vector<WriteEntry> writes(3);
    s.store.reserve_writes(put.request(), 0, 3, SegmentStore::Clock::now() + std::chrono::seconds(1), kNever,
                           writes);
    const char* all[] = {"first", "second", "third"};
    for (int i = 0; i < 3; ++i) {
      const std::vector<uint8_t> bytes = content(all[i], kLength);
      writes[i].digest = copy_crc32c(0, writes[i].data, bytes.data(), kLength);
    }
    s.damage(SlotTable::kFirstChunkOffset / sizeof(SlotHeader) + writes[1].slot, damage);
    end(s, put, writes);
    s.check_damage_is_counted();
    s.check_nothing_is_lost(damage.name);
  });
}

TEST(a_write_with_a_damaged_header_is_abandoned_like_any_other) {
  with_a_damaged_write([](Store& s, const Put&, std::vector<WriteEntry>& writes) {
    const uint64_t used = s.store.stats().at("used_bytes");
    s.store.abandon_writes(writes);
    CHECK_EQ(used - s.store.stats().at("used_bytes"), 2 * ExtentAllocator::rounded(kLength));
  });
}

TEST(a_write_with_a_damaged_header_fails_alone_and_the_others_are_journalled) {
  with_a_damaged_write([](Store& s, const Put& put, std::vector<WriteEntry>& writes) {
    const uint64_t before = s.store.journal().last_seq();
    s.store.seal_writes(put.request(), writes);
    CHECK_EQ(s.store.journal().last_seq() - before, uint64_t{2});
    CHECK_EQ(writes[0].status, Status::kOk);
    CHECK_EQ(writes[1].status, Status::kInternal);
    CHECK_EQ(writes[2].status, Status::kOk);
    CHECK_EQ(get_one(s.store, "third"), Status::kOk);
    CHECK_EQ(get_one(s.store, "second"), Status::kMiss);
  });
}

TEST(a_free_slot_with_a_damaged_header_is_passed_over) {
  for (const Damage& damage : kDamages) {
    if (damage.byte > 15) continue;  // what a free header holds of the rest is nobody's
    SegmentStore store(small_store());
    uint8_t* header = store.pool().base() + SlotTable::kFirstChunkOffset + sizeof(SlotHeader);
    header[damage.byte] ^= damage.bit;  // the next to be used
    CHECK_EQ(put_one(store, "a", kLength), Status::kOk);
    CHECK_EQ(get_one(store, "a"), Status::kOk);
    CHECK_EQ(store.stats().at("damaged_slots"), uint64_t{1});
    CHECK_EQ(store.stats().at("used_bytes"), ExtentAllocator::rounded(kLength));
  }
}

TEST_MAIN()
