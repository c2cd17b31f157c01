// Groups of journals and inventories as a master takes them: staged into records that an index takes whole, or refused.
#include <algorithm>

#include "fuzz.hpp"
#include "master/batch_staging.hpp"
#include "master/directory_index.hpp"
#include "master/live_entries.hpp"
#include "segment/journal.hpp"

namespace kvstore::fuzz {
namespace {

constexpr uint64_t kEntriesOfRecord = 7;

struct Applied {
  uint64_t entries = 0;
  uint64_t refused = 0;
};

// Every record is intact and applies; all of them together are what came without the first `skipped` entries.
Applied check_records(const StagedBatch& batch, DirectoryIndex& index, uint64_t skipped, bool numbered) {
  uint64_t entries = 0;
  for (const StagedRecord& record : batch.records) {
    HOLDS(record.bytes.size() >= kEnvelopeBytes && record.entries <= kEntriesOfRecord);
    const void* groups = record.bytes.data() + kEnvelopeBytes;
    const size_t bytes = record.bytes.size() - kEnvelopeBytes;
    HOLDS(DirectoryIndex::check(groups, bytes) == record.entries);
    index.apply(3, groups, bytes);
    entries += record.entries;
  }
  HOLDS(batch.refused <= batch.entries);
  HOLDS(entries + (numbered ? 0 : batch.refused) + std::min(skipped, batch.entries) == batch.entries);
  return {batch.entries, batch.refused};
}

}  // namespace

std::vector<Seed> seeds() {
  std::vector<Seed> seeds;
  for (const Golden& golden : golden_frames()) {
    const size_t head = wire::kHeaderBytes + (golden.name == "journal" ? 24 : 16);
    if ((golden.name == "journal" || golden.name == "inventory") && golden.frame.size() > head) {
      Bytes bytes{0};
      bytes.insert(bytes.end(), golden.frame.begin() + static_cast<std::ptrdiff_t>(head), golden.frame.end());
      seeds.push_back({golden.name, bytes});
      bytes[0] = 2;
      seeds.push_back({golden.name + "_partly_known", bytes});
    }
  }
  std::vector<JournalEntry> entries;
  for (uint64_t i = 0; i < 40; ++i)
    entries.push_back({{i / 2, 7},
                       {static_cast<uint8_t>(i / 16)},
                       i == 9 ? 0xFFFFFFFF : 5,
                       i % 11 == 10 ? JournalOp::kRemove : JournalOp::kAdd});
  Bytes many{0};
  write_journal_groups(entries.data(), entries.size(), many);
  seeds.push_back({"many_groups", many});
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint64_t skip = input.take<uint8_t>();
  const Bytes groups = input.rest();
  bool staged = true;
  Applied journal, inventory;
  DirectoryIndex by_journal, by_inventory;
  try {
    const StagedBatch batch = stage_journal(groups.data(), groups.size(), 101, 100 + skip, kEntriesOfRecord);
    journal = check_records(batch, by_journal, skip, true);
  } catch (const wire::WireError& refused) {
    HOLDS(refused.what()[0] != '\0');
    staged = false;
  }
  try {
    const StagedBatch batch = stage_inventory(groups.data(), groups.size(), 100, kEntriesOfRecord);
    inventory = check_records(batch, by_inventory, 0, false);
    HOLDS(staged && inventory.entries == journal.entries);
  } catch (const wire::WireError&) {
    HOLDS(!staged);
  }
  DirectoryIndex whole;
  try {
    whole.apply(3, groups.data(), groups.size());
    HOLDS(staged && inventory.refused == 0);
    HOLDS(whole.segment_usage(3).bytes == by_inventory.segment_usage(3).bytes);
    LiveEntries live(whole, 3);
    HOLDS(live.keep(groups.data(), groups.size()) == whole.segment_usage(3).entries);
  } catch (const wire::WireError&) {
    HOLDS(!staged || inventory.refused > 0);
    HOLDS(whole.entry_count() == 0);
  }
  return 0;
}

}  // namespace kvstore::fuzz
