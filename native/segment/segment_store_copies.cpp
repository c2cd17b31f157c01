// What copies of objects from segment to segment take of a store: whole objects by fingerprint, for that is what a directory
// knows them by. They are no use for eviction at the segment that they come from.
#include <algorithm>

#include "segment/segment_store.hpp"

namespace kvstore {
namespace {

using wire::Status;

constexpr uint32_t kLockedMax = 256;     // entries of one critical section
constexpr uint32_t kRankedSlots = 2048;  // slots looked at in one

wire::Intent intent_of(Keep keep) {
  switch (keep) {
    case Keep::kRetained:
      return wire::Intent::kRetain;
    case Keep::kDemoted:
      return wire::Intent::kDemote;
    default:
      return wire::Intent::kNormal;
  }
}

}  // namespace

SegmentStore::Copyable SegmentStore::acquire_copies(const fetch_codec::FetchRequest& request,
                                                    uint64_t has_bytes) {
  const size_t n = request.fingerprints.size();
  Copyable copies;
  copies.objects.resize(n);
  copies.reads.resize(n);
  if (closed_.load() || held_back_.load() || retired_.has(request.ns)) return copies;
  uint64_t bytes = 0, refused = 0;
  for (size_t first = 0; first < n; first += kLockedMax) {
    const MutexLock lock(mutex_);
    for (size_t i = first; i < std::min<size_t>(n, first + kLockedMax); ++i) {
      const Fingerprint& fp = request.fingerprints[i];
      const uint32_t slot = objects_.occupant(fp);
      if (slot == kNoSlot) continue;
      const SlotHeader& h = objects_.header(slot);
      if (h.ns != request.ns) continue;
      fetch_codec::FetchedObject& o = copies.objects[i];
      const uint64_t length = objects_.length(slot);
      if (bytes > 0 && bytes + length > request.bytes_max) {
        o.status = Status::kTooLarge;
        continue;
      }
      o.key = {h.ns, h.pool, h.shard, h.hash};
      // Before it is held: nothing may fail from then on. It does not go meanwhile, for that takes the mutex.
      o.text.assign(reinterpret_cast<const char*>(objects_.data(slot)) + length, objects_.text_bytes(slot));
      const HeldObject held = shards_.hold(fp, o.key, 0, false, has_bytes + bytes);
      if (held.slot == kNoSlot) {
        if (held.refused) o.status = Status::kUnavailable;
        refused += held.refused;
        continue;
      }
      o.status = Status::kOk;
      o.intent = intent_of(objects_.wished(slot));
      o.digest_alg = held.digest_alg;
      o.length = held.length;
      o.digest = held.digest;
      o.depth = h.depth;
      ReadEntry& read = copies.reads[i];
      read.status = Status::kOk;
      read.slot = held.slot;
      read.length = held.length;
      read.data = pool_.memory().base() + held.offset;
      bytes += held.length;
      copied_out_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  copied_out_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  budgets_.held_bytes.count_refused(refused);
  return copies;
}

bool SegmentStore::hottest(RankWalk& walk, size_t entries_max, std::vector<uint8_t>& groups) {
  const auto before = [](const ObjectTable::Ranked& a, const ObjectTable::Ranked& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.slot < b.slot;
  };
  std::vector<ObjectTable::Ranked> found;
  size_t kept = 0;  // of `found`: candidates; what is behind them was not looked at yet
  uint32_t end = 0;
  {
    const MutexLock lock(mutex_);
    rank_uses();
    if (!walk.begun) walk.since = objects_.uses();
    end = objects_.slots_end();
  }
  bool cut = false;
  for (uint32_t first = 0; first < end; first += kRankedSlots) {
    {
      const MutexLock lock(mutex_);
      objects_.list_ranked(first, std::min(end, first + kRankedSlots), walk.since, found);
    }
    const auto is_behind = [&](const ObjectTable::Ranked& each) {
      return walk.begun && (each.rank != walk.rank ? each.rank < walk.rank : each.slot <= walk.slot);
    };
    found.erase(std::remove_if(found.begin() + static_cast<ptrdiff_t>(kept), found.end(), is_behind),
                found.end());
    kept = found.size();
    if (kept < 2 * entries_max) continue;
    std::nth_element(found.begin(), found.begin() + static_cast<ptrdiff_t>(entries_max), found.end(), before);
    found.resize(kept = entries_max);
    cut = true;
  }
  std::sort(found.begin(), found.end(), before);
  if (found.size() > entries_max) {
    found.resize(entries_max);
    cut = true;
  }
  std::vector<JournalEntry> entries;
  entries.reserve(found.size());
  for (const ObjectTable::Ranked& each : found) entries.push_back(each.entry);
  write_journal_groups(entries.data(), entries.size(), groups);
  walk.begun = true;
  if (!found.empty()) {
    walk.rank = found.back().rank;
    walk.slot = found.back().slot;
  }
  return !cut;
}

std::pair<SegmentStore::Statuses, uint64_t> SegmentStore::have(const NamespaceId& ns,
                                                               const std::vector<Fingerprint>& fingerprints) {
  Statuses statuses(fingerprints.size(), static_cast<uint8_t>(Status::kMiss));
  uint64_t seq = 0;
  if (closed_.load() || held_back_.load() || retired_.has(ns)) return {std::move(statuses), seq};
  for (size_t first = 0; first < fingerprints.size(); first += kLockedMax) {
    const MutexLock lock(mutex_);
    for (size_t i = first; i < std::min<size_t>(fingerprints.size(), first + kLockedMax); ++i) {
      const uint32_t slot = objects_.occupant(fingerprints[i]);
      if (slot == kNoSlot || objects_.header(slot).ns != ns) continue;
      statuses[i] = static_cast<uint8_t>(Status::kExists);
      seq = std::max(seq, objects_.seq(slot));
    }
  }
  return {std::move(statuses), seq};
}

}  // namespace kvstore
