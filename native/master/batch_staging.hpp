// A journal batch or an inventory chunk made ready to be stored: checked, without what is there already, cut into records.
//
// Entries come as groups (docs/protocol.md section 8) and leave as records: groups in the envelope of the same section. An ADD that
// says an impossible length is left out; in a journal, where entries are numbered, a REMOVE of the same object stands in its place, so
// that the numbers of all others stay: whatever lies there now, it is not what the directory has known until then.
//
// Pure functions, thread-safe. Errors: wire::WireError unless the input is groups, of wire::kEntriesMax entries at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvstore {

constexpr size_t kEnvelopeBytes = 32;

struct StagedRecord {
  uint64_t entries = 0;
  std::string bytes;  // envelope and groups
};

struct StagedBatch {
  uint64_t entries = 0;               // of the input
  uint64_t refused = 0;               // of those that are stored: impossible lengths
  bool has_removes = false;           // in the input
  std::vector<StagedRecord> records;  // of entries_max entries at most each
};

// The first entry of the batch has the number first_seq; those up to accepted_seq are left out. A record says which numbers it has.
StagedBatch stage_journal(const void* groups, size_t bytes, uint64_t first_seq, uint64_t accepted_seq,
                          uint64_t entries_max);

// Records of a snapshot that stands for the journal up to `seq`.
StagedBatch stage_inventory(const void* groups, size_t bytes, uint64_t seq, uint64_t entries_max);

}  // namespace kvstore
