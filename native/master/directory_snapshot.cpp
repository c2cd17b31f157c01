// A segment's entries, read while they change.
#include <algorithm>

#include "master/directory_index.hpp"

namespace kvstore {
namespace {

constexpr uint8_t kOpAdd = 1;

}  // namespace

DirectoryIndex::Snapshot::Snapshot(DirectoryIndex& index, uint32_t segment, uint32_t entries_max)
    : index_(index), entries_max_(entries_max), segment_(segment), at_(kNoLocation) {
  if (entries_max == 0 || entries_max > wire::kEntriesMax)
    throw wire::WireError(wire::Status::kBadRequest,
                          "entries_max must be 1 to " + std::to_string(wire::kEntriesMax));
  const MutexLock lock(index_.mutex_);
  at_ = index_.segment_at(segment).entries.head;
  index_.snapshots_.push_back(this);
}

DirectoryIndex::Snapshot::~Snapshot() {
  const MutexLock lock(index_.mutex_);
  auto& all = index_.snapshots_;
  all.erase(std::remove(all.begin(), all.end(), this), all.end());
}

std::optional<wire::Writer> DirectoryIndex::Snapshot::next() {
  std::vector<Entry> entries;
  entries.reserve(entries_max_);
  std::vector<NamespaceId> namespaces;
  std::vector<std::pair<uint32_t, uint32_t>>
      positions;  // namespace number -> position in `namespaces`, sorted
  {
    const MutexLock lock(index_.mutex_);
    if (broken_)
      throw SnapshotBroken("the entries of segment index " + std::to_string(segment_) +
                           " were replaced while a snapshot was taken of them");
    uint32_t last_ns = 0, last_position = 0;
    while (entries.size() < entries_max_) {
      if (at_ == kNoLocation) {
        if (in_unconfirmed_) break;
        in_unconfirmed_ = true;
        at_ = index_.segments_[segment_].unconfirmed.head;
        continue;
      }
      const Location& location = index_.locations_[at_];
      if (location.list_next != kNoLocation) __builtin_prefetch(&index_.locations_[location.list_next]);
      if (namespaces.empty() || location.ns != last_ns) {
        const auto at = std::lower_bound(positions.begin(), positions.end(), std::make_pair(location.ns, 0u));
        if (at != positions.end() && at->first == location.ns) {
          last_position = at->second;
        } else {
          last_position = static_cast<uint32_t>(namespaces.size());
          positions.insert(at, {location.ns, last_position});
          namespaces.push_back(index_.namespaces_.id(location.ns));
        }
        last_ns = location.ns;
      }
      entries.push_back({location.fingerprint, location.length, last_position});
      at_ = location.list_next;
    }
  }
  if (entries.empty()) return std::nullopt;
  return encoded(entries, namespaces);
}

wire::Writer DirectoryIndex::Snapshot::encoded(std::vector<Entry>& entries,
                                               const std::vector<NamespaceId>& namespaces) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.ns < b.ns; });
  wire::Writer chunk(entries.size() * (kFingerprintBytes + 4) + namespaces.size() * 16);
  for (size_t from = 0, to; from < entries.size(); from = to) {
    for (to = from; to < entries.size() && entries[to].ns == entries[from].ns;) ++to;
    chunk.u8(kOpAdd).zeros(3).u32(static_cast<uint32_t>(to - from));
    chunk.raw(namespaces[entries[from].ns].data(), kNamespaceBytes);
    for (size_t i = from; i < to; ++i) chunk.u64(entries[i].fingerprint.lo).u64(entries[i].fingerprint.hi);
    for (size_t i = from; i < to; ++i) chunk.u32(entries[i].length);
  }
  return chunk;
}

}  // namespace kvstore
