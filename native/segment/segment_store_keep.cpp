// What becomes of objects when space runs short, as writers and operators want it. Each batch takes the mutex once for up to
// kLockedMax entries.
//
// The keys of a batch are a chain: where not all of it can be retained, its head is. Eviction is told of it from the end,
// so that among those that are retained, or demoted, the head goes last.
//
// A page is of use whenever a deeper one of its prefix is. Whoever wants a chain from some depth on and then has what lies
// right before that demoted contradicts himself: it is wanted, too. Nobody knows here which pages are of one prefix, so
// that this is seen only of a call right behind another, and at worst a demotion is ignored.
#include <algorithm>
#include <utility>

#include "segment/segment_store.hpp"

namespace kvstore {
namespace {

using wire::Status;

constexpr uint32_t kLockedMax = 1024;    // entries of one critical section
constexpr uint32_t kSlotsSliced = 4096;  // slots looked at in one

constexpr auto kLeftAlone = static_cast<uint8_t>(Status::kInternal);  // of an entry that is not asked about
uint8_t code(Status status) { return static_cast<uint8_t>(status); }

}  // namespace

bool SegmentStore::is_before_wanted(const KeyBlock& block, uint32_t first, uint32_t end,
                                    const std::vector<uint32_t>& slots, wire::Intent intent) {
  const auto any = std::find_if(slots.begin(), slots.end(), [](uint32_t slot) { return slot != kNoSlot; });
  if (any == slots.end()) return false;
  const uint32_t depth = objects_.header(*any).depth;
  const uint32_t place = (first + static_cast<uint32_t>(any - slots.begin())) / block.shard_count;
  const uint32_t before =
      depth - std::min(depth, place);  // pages of the chain that are before the first of the block
  const WantedChain wanted = std::exchange(wanted_chain_, {});
  const bool contradicts = intent == wire::Intent::kDemote && wanted.ns == block.ns &&
                           wanted.depth == before + (end - 1) / block.shard_count + 1;
  if (intent == wire::Intent::kRetain || contradicts)
    wanted_chain_ = {block.ns, before + first / block.shard_count};
  return contradicts;
}

void SegmentStore::keep_some(const KeyBlock& block, const std::vector<Fingerprint>& fps, uint32_t first,
                             uint32_t end, const wire::KeepWish& wish, Statuses& statuses) {
  if (closed_.load() || objects_.namespaces().is_retired(block.ns)) return;
  rank_uses();
  const uint64_t now = now_ms();
  uint64_t room_bytes = objects_.retention(now).room_bytes(block.ns);
  std::vector<uint32_t> slots(end - first, kNoSlot);
  for (uint32_t i = first; i < end; ++i) {
    if (statuses[i] == kLeftAlone) continue;
    const uint32_t slot = slots[i - first] = objects_.find(fps[i], block.key(i));
    if (slot == kNoSlot) continue;
    statuses[i] = code(Status::kOk);
    if (wish.intent != wire::Intent::kRetain || objects_.is_retained(slot)) continue;
    if (objects_.taken_bytes(slot) <= room_bytes)
      room_bytes -= objects_.taken_bytes(slot);
    else
      statuses[i] = code(Status::kNoSpace);
  }
  const bool spares = is_before_wanted(block, first, end, slots, wish.intent);
  for (uint32_t i = end; i-- > first;) {
    if (slots[i - first] == kNoSlot) continue;
    if (spares) {
      objects_.spare(slots[i - first]);
      statuses[i] = code(Status::kNoSpace);
    } else if (statuses[i] == code(Status::kNoSpace)) {
      objects_.refuse_retention(slots[i - first]);
    } else if (!objects_.keep(slots[i - first], wish, now)) {
      statuses[i] = code(Status::kNoSpace);
    }
  }
}

SegmentStore::Statuses SegmentStore::keep(const KeyBlock& block, const wire::KeepWish& wish) {
  const uint32_t n = block.entry_count();
  const std::vector<Fingerprint> fps = block.fingerprints();
  Statuses statuses(n, code(Status::kMiss));
  for (uint32_t first = 0; first < n; first += kLockedMax) {
    const MutexLock lock(mutex_);
    keep_some(block, fps, first, std::min(n, first + kLockedMax), wish, statuses);
  }
  if (disk_ != nullptr && wish.intent == wire::Intent::kRetain) {
    std::vector<uint32_t> kept;
    for (uint32_t i = 0; i < n; ++i)
      if (statuses[i] != code(Status::kMiss)) kept.push_back(i);
    note_for_disk(block, fps, kept, true);
  }
  return statuses;
}

uint32_t SegmentStore::keep_stored(const KeyBlock& block, const wire::KeepWish& wish, const Statuses& put) {
  const uint32_t n = block.entry_count();
  const std::vector<Fingerprint> fps = block.fingerprints();
  Statuses statuses(n, code(Status::kMiss));
  for (uint32_t i = 0; i < n; ++i)
    if (put[i] != code(Status::kOk) && put[i] != code(Status::kExists)) statuses[i] = kLeftAlone;
  for (uint32_t first = 0; first < n; first += kLockedMax) {
    const MutexLock lock(mutex_);
    keep_some(block, fps, first, std::min(n, first + kLockedMax), wish, statuses);
  }
  return static_cast<uint32_t>(std::count(statuses.begin(), statuses.end(), code(Status::kNoSpace)));
}

SegmentStore::KeepCounts SegmentStore::keep_objects(const NamespaceId& ns,
                                                    const std::vector<Fingerprint>& fingerprints,
                                                    const wire::KeepWish& wish) {
  KeepCounts counts;
  for (size_t first = 0; first < fingerprints.size(); first += kLockedMax) {
    const MutexLock lock(mutex_);
    if (closed_.load() || objects_.namespaces().is_retired(ns)) {
      counts.missing += fingerprints.size() - first;
      break;
    }
    const uint64_t now = now_ms();
    for (size_t i = first; i < std::min<size_t>(fingerprints.size(), first + kLockedMax); ++i) {
      const uint32_t slot = objects_.occupant(fingerprints[i]);
      if (slot == kNoSlot || objects_.header(slot).ns != ns)
        ++counts.missing;
      else
        ++(objects_.keep(slot, wish, now) ? counts.kept : counts.refused);
    }
  }
  return counts;
}

SegmentStore::KeepCounts SegmentStore::keep_namespace(const NamespaceId& ns, const wire::KeepWish& wish) {
  KeepCounts counts;
  uint32_t end = 0;
  {
    const MutexLock lock(mutex_);
    end = objects_.slots_end();
  }
  for (uint32_t first = 0; first < end;) {
    const uint32_t slice_end = first + std::min(kSlotsSliced, end - first);
    const MutexLock lock(mutex_);
    if (closed_.load() || objects_.namespaces().is_retired(ns)) break;
    const uint64_t now = now_ms();
    for (first = objects_.next_of(ns, first, slice_end); first < slice_end;
         first = objects_.next_of(ns, first + 1, slice_end))
      ++(objects_.keep(first, wish, now) ? counts.kept : counts.refused);
  }
  return counts;
}

std::pair<std::vector<Retention::Account>, RetentionLimits> SegmentStore::retention() {
  const MutexLock lock(mutex_);
  const Retention& kept = objects_.retention(now_ms());
  return {kept.accounts(), kept.limits()};
}

}  // namespace kvstore
