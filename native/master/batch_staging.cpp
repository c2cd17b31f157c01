#include "master/batch_staging.hpp"

#include <algorithm>
#include <cstring>

#include "base/digest.hpp"
#include "protocol/keys.hpp"
#include "protocol/wire.hpp"

namespace kvstore {
namespace {

constexpr uint32_t kRecordMagic = 0x314A564B;  // "KVJ1"
constexpr uint16_t kRecordVersion = 1;
constexpr uint16_t kKindJournal = 1;
constexpr uint16_t kKindSnapshot = 2;
constexpr uint8_t kOpAdd = 1;
constexpr uint8_t kOpRemove = 2;
constexpr size_t kLengthBytes = 4;

struct Envelope {
  uint32_t magic = kRecordMagic;
  uint16_t version = kRecordVersion;
  uint16_t kind;
  uint64_t first_seq;
  uint64_t last_seq;
  uint32_t body_bytes;
  uint32_t crc;
};
static_assert(sizeof(Envelope) == kEnvelopeBytes);

struct GroupHead {
  uint8_t op;
  uint8_t reserved[3];
  uint32_t count;
  uint8_t ns[kNamespaceBytes];
};
static_assert(sizeof(GroupHead) == 8 + kNamespaceBytes);

struct Group {
  GroupHead head;
  const uint8_t* fingerprints;
  const uint8_t* lengths;

  bool refused(uint64_t i) const {
    uint32_t length;
    std::memcpy(&length, lengths + i * kLengthBytes, sizeof length);
    return head.op == kOpAdd && length > wire::kObjectBytesMax;
  }
};

std::vector<Group> parse(const void* groups, size_t bytes) {
  std::vector<Group> parsed;
  wire::Reader reader(groups, bytes);
  uint64_t total = 0;
  while (reader.left() > 0) {
    Group group;
    std::memcpy(&group.head, reader.bytes(sizeof group.head, "journal group"), sizeof group.head);
    if (group.head.op != kOpAdd && group.head.op != kOpRemove)
      throw wire::WireError(wire::Status::kBadRequest,
                            "journal op " + std::to_string(group.head.op) + " is neither ADD nor REMOVE");
    total += group.head.count;
    if (total > wire::kEntriesMax)
      throw wire::WireError(wire::Status::kTooLarge, "a journal batch holds at most " +
                                                         std::to_string(wire::kEntriesMax) + " entries");
    group.fingerprints = reader.bytes(size_t{group.head.count} * kFingerprintBytes, "fingerprints");
    group.lengths = reader.bytes(size_t{group.head.count} * kLengthBytes, "lengths");
    parsed.push_back(group);
  }
  return parsed;
}

// Collects entries into records.
class Records {
 public:
  Records(uint64_t entries_max, size_t bytes) : entries_max_(entries_max), bytes_(bytes) {}

  void add(const Group& group, uint8_t op, uint64_t from, uint64_t to) {
    while (from < to) {
      if (records_.empty() || records_.back().entries == entries_max_) begin();
      StagedRecord& record = records_.back();
      const uint64_t count = std::min(to - from, entries_max_ - record.entries);
      append(record.bytes, group, op, from, count);
      record.entries += count;
      from += count;
    }
  }

  std::vector<StagedRecord> take() { return std::move(records_); }

 private:
  void begin() {
    records_.emplace_back();
    // One copy where the input becomes one record, as it does but for the largest.
    records_.back().bytes.reserve(kEnvelopeBytes + std::min<size_t>(bytes_, entries_max_ * 36));
    records_.back().bytes.resize(kEnvelopeBytes);
  }

  static void append(std::string& to, const Group& group, uint8_t op, uint64_t from, uint64_t count) {
    GroupHead head = group.head;
    std::memset(head.reserved, 0, sizeof head.reserved);
    head.op = op;
    head.count = static_cast<uint32_t>(count);
    to.append(reinterpret_cast<const char*>(&head), sizeof head);
    to.append(reinterpret_cast<const char*>(group.fingerprints + from * kFingerprintBytes),
              count * kFingerprintBytes);
    if (op == group.head.op)
      to.append(reinterpret_cast<const char*>(group.lengths + from * kLengthBytes), count * kLengthBytes);
    else
      to.append(count * kLengthBytes, '\0');
  }

  const uint64_t entries_max_;
  const size_t bytes_;
  std::vector<StagedRecord> records_;
};

// Leaves out the first `skip` entries of all.
StagedBatch stage(const void* groups, size_t bytes, uint64_t skip, bool numbered, uint64_t entries_max) {
  StagedBatch batch;
  Records records(entries_max, bytes);
  for (const Group& group : parse(groups, bytes)) {
    const uint64_t count = group.head.count;
    batch.entries += count;
    batch.has_removes |= group.head.op == kOpRemove && count > 0;
    uint64_t from = std::min(skip, count);
    skip -= from;
    for (uint64_t i = from; i < count; ++i) {
      if (!group.refused(i)) continue;
      ++batch.refused;
      records.add(group, group.head.op, from, i);
      if (numbered) records.add(group, kOpRemove, i, i + 1);
      from = i + 1;
    }
    records.add(group, group.head.op, from, count);
  }
  batch.records = records.take();
  return batch;
}

void seal(StagedRecord& record, uint16_t kind, uint64_t first_seq, uint64_t last_seq) {
  Envelope envelope{};
  envelope.kind = kind;
  envelope.first_seq = first_seq;
  envelope.last_seq = last_seq;
  envelope.body_bytes = static_cast<uint32_t>(record.bytes.size() - kEnvelopeBytes);
  envelope.crc = crc32c(0, record.bytes.data() + kEnvelopeBytes, envelope.body_bytes);
  std::memcpy(record.bytes.data(), &envelope, sizeof envelope);
}

}  // namespace

StagedBatch stage_journal(const void* groups, size_t bytes, uint64_t first_seq, uint64_t accepted_seq,
                          uint64_t entries_max) {
  const uint64_t skip = accepted_seq >= first_seq ? accepted_seq - first_seq + 1 : 0;
  StagedBatch batch = stage(groups, bytes, skip, true, entries_max);
  uint64_t next = first_seq + skip;
  for (StagedRecord& record : batch.records) {
    seal(record, kKindJournal, next, next + record.entries - 1);
    next += record.entries;
  }
  return batch;
}

StagedBatch stage_inventory(const void* groups, size_t bytes, uint64_t seq, uint64_t entries_max) {
  StagedBatch batch = stage(groups, bytes, 0, false, entries_max);
  for (StagedRecord& record : batch.records) seal(record, kKindSnapshot, seq, seq);
  return batch;
}

}  // namespace kvstore
