// What a batch becomes before it is stored: nothing lost, nothing twice, nothing that no directory takes.
#include <cstring>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "check.hpp"
#include "master/batch_staging.hpp"
#include "protocol/keys.hpp"
#include "protocol/wire.hpp"

using namespace kvstore;

namespace {

constexpr uint8_t kAdd = 1;
constexpr uint8_t kRemove = 2;
constexpr uint64_t kNoBound = 1u << 20;
constexpr uint32_t kTooLong = wire::kObjectBytesMax + 1;

struct Entry {
  uint8_t op;
  uint32_t ns;
  uint32_t object;
  uint32_t length;

  bool operator==(const Entry& o) const {
    return op == o.op && ns == o.ns && object == o.object && length == o.length;
  }
};
using Entries = std::vector<Entry>;

template <typename T>
void put(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
T take(const std::string& from, size_t& at) {
  T value;
  std::memcpy(&value, from.data() + at, sizeof value);
  at += sizeof value;
  return value;
}

// One group; all entries have the first one's op and namespace.
std::string group(const Entries& entries) {
  std::string bytes;
  put(bytes, uint32_t{entries[0].op});
  put(bytes, static_cast<uint32_t>(entries.size()));
  put(bytes, uint64_t{entries[0].ns});
  for (const Entry& each : entries) put(bytes, uint64_t{each.object}), put(bytes, ~uint64_t{each.object});
  for (const Entry& each : entries) put(bytes, each.length);
  return bytes;
}

// `count` objects from `first` on.
Entries objects(uint8_t op, uint32_t ns, uint32_t first, uint32_t count) {
  Entries entries;
  for (uint32_t i = 0; i < count; ++i) entries.push_back({op, ns, first + i, op == kAdd ? 100 + i : 0});
  return entries;
}

struct Read {
  uint16_t kind;
  uint64_t first_seq;
  uint64_t last_seq;
  Entries entries;
};

// Read as docs/protocol.md has it.
Read read(const StagedRecord& record) {
  const std::string& bytes = record.bytes;
  Read found{};
  size_t at = 0;
  CHECK_EQ(take<uint32_t>(bytes, at), uint32_t{0x314A564B});
  CHECK_EQ(take<uint16_t>(bytes, at), uint16_t{1});
  found.kind = take<uint16_t>(bytes, at);
  found.first_seq = take<uint64_t>(bytes, at);
  found.last_seq = take<uint64_t>(bytes, at);
  CHECK_EQ(take<uint32_t>(bytes, at), static_cast<uint32_t>(bytes.size() - kEnvelopeBytes));
  CHECK_EQ(take<uint32_t>(bytes, at),
           crc32c(0, bytes.data() + kEnvelopeBytes, bytes.size() - kEnvelopeBytes));
  CHECK_EQ(at, kEnvelopeBytes);
  while (at < bytes.size()) {
    const auto op = static_cast<uint8_t>(take<uint32_t>(bytes, at));
    const auto count = take<uint32_t>(bytes, at);
    const auto ns = static_cast<uint32_t>(take<uint64_t>(bytes, at));
    size_t length_at = at + size_t{count} * kFingerprintBytes;
    for (uint32_t i = 0; i < count; ++i) {
      const auto object = take<uint64_t>(bytes, at);
      CHECK_EQ(take<uint64_t>(bytes, at), ~object);
      const auto length = take<uint32_t>(bytes, length_at);
      found.entries.push_back({op, ns, static_cast<uint32_t>(object), length});
    }
    at = length_at;
  }
  CHECK_EQ(record.entries, uint64_t{found.entries.size()});
  return found;
}

// What the records say together; each goes on where the one before it ended, the last ends at `last_seq`.
Entries journalled(const StagedBatch& batch, uint64_t first_seq, uint64_t last_seq) {
  Entries all;
  uint64_t next = first_seq;
  for (const StagedRecord& record : batch.records) {
    const Read found = read(record);
    CHECK_EQ(found.kind, uint16_t{1});
    CHECK_EQ(found.first_seq, next);
    next = found.last_seq + 1;
    CHECK_EQ(next - found.first_seq, uint64_t{found.entries.size()});
    all.insert(all.end(), found.entries.begin(), found.entries.end());
  }
  CHECK_EQ(next, last_seq + 1);
  return all;
}

Entries joined(Entries a, const Entries& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

StagedBatch journal(const std::string& groups, uint64_t first_seq, uint64_t accepted_seq,
                    uint64_t entries_max = kNoBound) {
  return stage_journal(groups.data(), groups.size(), first_seq, accepted_seq, entries_max);
}

StagedBatch inventory(const std::string& groups, uint64_t seq, uint64_t entries_max = kNoBound) {
  return stage_inventory(groups.data(), groups.size(), seq, entries_max);
}

const Entries kAdds = objects(kAdd, 1, 10, 4);
const Entries kRemoves = objects(kRemove, 2, 20, 3);
const std::string kGroups = group(kAdds) + group(kRemoves);  // entries 101 to 107 in what follows

}  // namespace

TEST(a_batch_is_one_record_that_says_its_numbers_and_carries_its_checksum) {
  const StagedBatch batch = journal(kGroups, 101, 100);
  CHECK_EQ(batch.entries, uint64_t{7});
  CHECK_EQ(batch.refused, uint64_t{0});
  CHECK(batch.has_removes);
  CHECK_EQ(batch.records.size(), size_t{1});
  CHECK(journalled(batch, 101, 107) == joined(kAdds, kRemoves));
}

TEST(what_was_accepted_before_is_left_out_wherever_it_ends) {
  const Entries all = joined(kAdds, kRemoves);
  for (uint64_t accepted = 90; accepted < 107; ++accepted) {
    const uint64_t skip = accepted > 100 ? accepted - 100 : 0;
    const StagedBatch batch = journal(kGroups, 101, accepted);
    CHECK_EQ(batch.entries, uint64_t{7});
    CHECK(journalled(batch, 101 + skip, 107) ==
          Entries(all.begin() + static_cast<std::ptrdiff_t>(skip), all.end()));
  }
  for (const uint64_t accepted : {107, 108, 1000}) {
    const StagedBatch batch = journal(kGroups, 101, accepted);
    CHECK_EQ(batch.entries, uint64_t{7});
    CHECK(batch.records.empty());
  }
}

TEST(a_batch_is_cut_where_a_record_is_full_and_its_parts_go_on_from_each_other) {
  const Entries all = joined(kAdds, kRemoves);
  for (uint64_t entries_max = 1; entries_max <= 8; ++entries_max)
    for (uint64_t skip = 0; skip < 7; ++skip) {
      const StagedBatch batch = journal(kGroups, 101, 100 + skip, entries_max);
      CHECK_EQ(batch.records.size(), size_t{(7 - skip + entries_max - 1) / entries_max});
      for (const StagedRecord& record : batch.records)
        CHECK(record.entries == entries_max || &record == &batch.records.back());
      CHECK(journalled(batch, 101 + skip, 107) ==
            Entries(all.begin() + static_cast<std::ptrdiff_t>(skip), all.end()));
    }
}

TEST(an_impossible_length_costs_its_entry_alone_and_a_journal_keeps_its_numbers) {
  Entries adds = objects(kAdd, 1, 10, 5);
  adds[0].length = adds[3].length = kTooLong;
  adds[4].length = wire::kObjectBytesMax;  // as long as may be
  Entries removes = objects(kRemove, 1, 20, 1);
  removes[0].length = kTooLong;  // says nothing
  const std::string groups = group(adds) + group(removes);
  const StagedBatch batch = journal(groups, 1, 0, 2);
  CHECK_EQ(batch.refused, uint64_t{2});
  CHECK_EQ(batch.records.size(), size_t{3});
  Entries expected = joined(adds, removes);
  expected[0] = {kRemove, 1, 10, 0};
  expected[3] = {kRemove, 1, 13, 0};
  CHECK(journalled(batch, 1, 6) == expected);
  CHECK_EQ(journal(groups, 1, 3).refused, uint64_t{1});  // one was refused when it came first
  // An inventory numbers nothing: what it can't say of an object it does not say.
  const StagedBatch chunk = inventory(group(adds), 50);
  CHECK_EQ(chunk.refused, uint64_t{2});
  CHECK(!chunk.has_removes);
  CHECK(read(chunk.records[0]).entries == Entries({adds[1], adds[2], adds[4]}));
}

TEST(every_part_of_an_inventory_stands_for_the_same_number) {
  const Entries all = objects(kAdd, 3, 0, 10);
  const StagedBatch batch = inventory(group(all), 77, 4);
  CHECK_EQ(batch.records.size(), size_t{3});
  Entries found;
  for (const StagedRecord& record : batch.records) {
    const Read each = read(record);
    CHECK_EQ(each.kind, uint16_t{2});
    CHECK(each.first_seq == 77 && each.last_seq == 77);
    found = joined(std::move(found), each.entries);
  }
  CHECK(found == all);
  CHECK(inventory(kGroups, 77).has_removes);
  CHECK(inventory("", 77).records.empty());
}

TEST(what_is_no_batch_is_refused_whole) {
  for (size_t cut = 1; cut < kGroups.size(); ++cut)
    if (cut != group(kAdds).size()) CHECK_THROWS(journal(kGroups.substr(0, cut), 1, 0), wire::WireError);
  for (const int op : {0, 3, 255}) {
    std::string groups = kGroups;
    groups[group(kAdds).size()] = static_cast<char>(op);
    CHECK_THROWS(journal(groups, 1, 0), wire::WireError);
  }
  const Entries most = objects(kAdd, 1, 0, static_cast<uint32_t>(wire::kEntriesMax));
  CHECK_EQ(journal(group(most), 1, 0).entries, uint64_t{wire::kEntriesMax});
  CHECK_THROWS(journal(group(most) + group(objects(kAdd, 1, 0, 1)), 1, 0), wire::WireError);
}

TEST_MAIN()
