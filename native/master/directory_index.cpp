// Changes of the directory, and what it adds up to.
#include "master/directory_index.hpp"

#include <algorithm>

#include "master/object_length.hpp"

namespace kvstore {
namespace {

constexpr uint32_t kTakeSlice = 2048;  // entries looked at before others get the lock
constexpr uint8_t kOpAdd = 1;
constexpr uint8_t kOpRemove = 2;
constexpr uint32_t kSlotsAhead = 16;     // entries whose slot is on its way ...
constexpr uint32_t kLocationsAhead = 8;  // ... and whose location is
constexpr uint64_t kSweepBlock = 16;     // doomed entries whose slots are fetched together

using wire::u32_at;

}  // namespace

DirectoryIndex::Segment& DirectoryIndex::segment_at(uint32_t segment) {
  if (segment >= kSegmentsMax)
    throw wire::WireError(wire::Status::kTooLarge, "segment index " + std::to_string(segment) +
                                                       " is over the cap of " + std::to_string(kSegmentsMax));
  if (segment >= segments_.size()) segments_.resize(segment + 1);
  return segments_[segment];
}

// ---- journal groups --------------------------------------------------------------------------------------

std::vector<DirectoryIndex::Group> DirectoryIndex::parse_groups(const void* groups, size_t bytes) {
  std::vector<Group> parsed;
  wire::Reader reader(groups, bytes);
  uint64_t total = 0;
  while (reader.left() > 0) {
    Group group;
    const uint8_t op = reader.u8("op");
    if (op != kOpAdd && op != kOpRemove)
      throw wire::WireError(wire::Status::kBadRequest,
                            "journal op " + std::to_string(op) + " is neither ADD nor REMOVE");
    group.add = op == kOpAdd;
    reader.bytes(3, "reserved");
    group.count = reader.u32("count");
    total += group.count;
    if (total > wire::kEntriesMax)
      throw wire::WireError(wire::Status::kTooLarge, "a journal batch holds at most " +
                                                         std::to_string(wire::kEntriesMax) + " entries");
    std::memcpy(group.ns.data(), reader.bytes(kNamespaceBytes, "namespace"), kNamespaceBytes);
    group.fingerprints = reader.bytes(size_t{group.count} * kFingerprintBytes, "fingerprints");
    group.lengths = reader.bytes(size_t{group.count} * 4, "lengths");
    if (group.add)
      for (uint32_t i = 0; i < group.count; ++i) check_object_length(u32_at(group.lengths, i));
    parsed.push_back(group);
  }
  return parsed;
}

uint64_t DirectoryIndex::check(const void* groups, size_t bytes) {
  uint64_t entries = 0;
  for (const Group& group : parse_groups(groups, bytes)) entries += group.count;
  return entries;
}

void DirectoryIndex::hold_namespaces(std::vector<Group>& groups, uint32_t segment) {
  size_t held = 0;
  try {
    for (Group& group : groups) {
      group.ns_number = namespaces_.hold(group.ns);
      ++held;
      if (group.add) namespaces_.expect(group.ns_number, segment);
    }
  } catch (...) {
    while (held-- > 0) namespaces_.unhold(groups[held].ns_number);
    throw;
  }
}

DirectoryIndex::Applied DirectoryIndex::apply(uint32_t segment, const void* groups, size_t bytes) {
  std::vector<Group> parsed = parse_groups(groups, bytes);
  std::vector<uint32_t> tags, adds;  // of all entries, and of those that are added

  for (const Group& group : parsed) {
    for (uint32_t i = 0; i < group.count; ++i) tags.push_back(tag_of(fingerprint_at(group.fingerprints, i)));
    if (group.add) adds.insert(adds.end(), tags.end() - group.count, tags.end());
  }
  const MutexLock lock(mutex_);
  // Whatever can fail comes before the first change.
  segment_at(segment);
  locations_.reserve(adds.size());
  table_.reserve(adds);
  hold_namespaces(parsed, segment);

  Applied applied;
  const uint32_t* tag = tags.data();
  for (const Group& group : parsed) {
    for (uint32_t i = 0; i < group.count; ++i) {
      if (i + kSlotsAhead < group.count) table_.prefetch(tag[i + kSlotsAhead]);
      if (i + kLocationsAhead < group.count) prefetch_location(tag[i + kLocationsAhead]);
      const Fingerprint f = fingerprint_at(group.fingerprints, i);
      if (group.add)
        applied.added += add(segment, group.ns_number, f, tag[i], u32_at(group.lengths, i)) ? 1 : 0;
      else
        applied.removed += remove(segment, f, tag[i]) ? 1 : 0;
    }
    tag += group.count;
  }
  for (const Group& group : parsed) namespaces_.unhold(group.ns_number);
  return applied;
}

// ---- entries ---------------------------------------------------------------------------------------------

bool DirectoryIndex::add(uint32_t segment, uint32_t ns, const Fingerprint& f, uint32_t tag, uint32_t length) {
  FingerprintTable::Slot& slot = table_.find(tag, f, locations_);
  Segment& owner = segments_[segment];
  for (uint32_t i = slot.head; i != kNoLocation; i = locations_[i].chain_next) {
    Location& known = locations_[i];
    if (known.segment != segment) continue;
    owner.usage.remove(known.length);
    owner.usage.add(length);
    namespaces_.add(ns, segment, length);
    namespaces_.remove(known.ns, segment, known.length);
    known.length = length;
    known.ns = ns;
    if (!owner.unconfirmed.empty() || !doomed_.empty()) {  // it may be on one of these
      unlist(i);
      locations_.push_front(owner.entries, i);
      break_snapshots(segment);  // it may have been moved out of their way
    }
    return false;
  }
  if (slot.head != kNoLocation && duplicates_.size() < duplicates_.capacity()) duplicates_.push_back(f);
  const uint32_t fresh = locations_.take();
  locations_[fresh] = Location{f, segment, length, ns, slot.head, kNoLocation, kNoLocation};
  locations_.push_front(owner.entries, fresh);
  table_.fill(slot, tag, fresh);
  owner.usage.add(length);
  namespaces_.add(ns, segment, length);
  return true;
}

bool DirectoryIndex::remove(uint32_t segment, const Fingerprint& f, uint32_t tag) {
  FingerprintTable::Slot& slot = table_.find(tag, f, locations_);
  uint32_t before = kNoLocation;
  for (uint32_t i = slot.head; i != kNoLocation; before = i, i = locations_[i].chain_next) {
    if (locations_[i].segment != segment) continue;
    unlink(slot, before, i);
    return true;
  }
  return false;
}

void DirectoryIndex::unlink(FingerprintTable::Slot& slot, uint32_t before, uint32_t target) {
  const Location& gone = locations_[target];
  unlist(target);
  segments_[gone.segment].usage.remove(gone.length);
  namespaces_.remove(gone.ns, gone.segment, gone.length);
  if (before != kNoLocation)
    locations_[before].chain_next = gone.chain_next;
  else if (gone.chain_next != kNoLocation)
    table_.fill(slot, slot.tag, gone.chain_next);
  else
    table_.erase(slot);
  locations_.give_back(target);
}

void DirectoryIndex::remove_location(uint32_t target, uint32_t tag) {
  FingerprintTable::Slot& slot = table_.find(tag, locations_[target].fingerprint, locations_);
  uint32_t before = kNoLocation;
  for (uint32_t i = slot.head; i != target; i = locations_[i].chain_next) before = i;
  unlink(slot, before, target);
}

void DirectoryIndex::unlist(uint32_t target) {
  const Location& location = locations_[target];
  for (Snapshot* snapshot : snapshots_)
    if (snapshot->at_ == target) snapshot->at_ = location.list_next;
  Segment& owner = segments_[location.segment];
  locations_.unlist({&owner.entries, &owner.unconfirmed, &doomed_}, target);
}

// ---- inventories and drops -------------------------------------------------------------------------------

void DirectoryIndex::begin_inventory(uint32_t segment) {
  const MutexLock lock(mutex_);
  Segment& owner = segment_at(segment);
  break_snapshots(segment);
  locations_.splice_front(owner.unconfirmed, owner.entries);
}

void DirectoryIndex::end_inventory(uint32_t segment) {
  const MutexLock lock(mutex_);
  Segment& owner = segment_at(segment);
  break_snapshots(segment);
  if (!owner.unconfirmed.empty()) owner.has_doomed = true;
  locations_.splice_front(doomed_, owner.unconfirmed);
}

void DirectoryIndex::drop_segment(uint32_t segment) {
  const MutexLock lock(mutex_);
  Segment& owner = segment_at(segment);
  break_snapshots(segment);
  locations_.splice_front(doomed_, owner.entries);
  locations_.splice_front(doomed_, owner.unconfirmed);
}

uint64_t DirectoryIndex::sweep(uint64_t entries_max) {
  const MutexLock lock(mutex_);
  uint64_t swept = 0;
  while (!doomed_.empty() && swept < entries_max) {
    uint32_t block[kSweepBlock], tags[kSweepBlock];
    const uint64_t count_max = std::min(kSweepBlock, entries_max - swept);
    uint64_t count = 0;
    for (uint32_t i = doomed_.head; i != kNoLocation && count < count_max; i = locations_[i].list_next) {
      block[count] = i;
      tags[count] = tag_of(locations_[i].fingerprint);
      table_.prefetch(tags[count++]);
    }
    for (uint64_t i = 0; i < count; ++i) remove_location(block[i], tags[i]);
    swept += count;
  }
  if (swept > 0 && doomed_.empty())
    for (Segment& segment : segments_) segment.has_doomed = false;
  return swept;
}

void DirectoryIndex::clear() {
  FingerprintTable table;
  LocationStore locations;
  NamespaceAccounts namespaces;
  std::vector<Segment> segments;
  const MutexLock lock(mutex_);
  for (Snapshot* snapshot : snapshots_) snapshot->broken_ = true;
  // What is swapped out goes after the lock: it was made before.
  std::swap(table_, table);
  std::swap(locations_, locations);
  std::swap(namespaces_, namespaces);
  std::swap(segments_, segments);
  doomed_ = LocationList{};
}

void DirectoryIndex::break_snapshots(uint32_t segment) {
  for (Snapshot* snapshot : snapshots_)
    if (snapshot->segment_ == segment) snapshot->broken_ = true;
}

void DirectoryIndex::set_serving(uint32_t segment, bool serving) {
  const MutexLock lock(mutex_);
  segment_at(segment).serving = serving;
}

void DirectoryIndex::set_vouched(uint32_t segment, bool vouched) {
  const MutexLock lock(mutex_);
  segment_at(segment).vouched = vouched;
}

void DirectoryIndex::set_host(uint32_t segment, uint32_t host) {
  const MutexLock lock(mutex_);
  segment_at(segment).host = host;
}

// ---- copies ----------------------------------------------------------------------------------------------

void DirectoryIndex::track_duplicates(size_t pages_max) {
  std::vector<Fingerprint> room;
  room.reserve(pages_max);
  const MutexLock lock(mutex_);
  duplicates_.swap(room);
}

std::vector<Fingerprint> DirectoryIndex::take_duplicates(size_t pages_max) {
  std::vector<Fingerprint> taken;
  const MutexLock lock(mutex_);
  const size_t count = std::min(pages_max, duplicates_.size());
  taken.assign(duplicates_.rbegin(), duplicates_.rbegin() + static_cast<ptrdiff_t>(count));
  duplicates_.resize(duplicates_.size() - count);
  return taken;
}

// ---- totals ----------------------------------------------------------------------------------------------

std::vector<DirectoryIndex::Held> DirectoryIndex::take_held(uint32_t segment, const void* groups,
                                                            size_t bytes, std::vector<bool>& taken) const {
  const std::vector<Group> parsed = parse_groups(groups, bytes);
  std::vector<Held> held;
  for (const Group& group : parsed) {
    if (!group.add) continue;
    for (uint32_t from = 0; from < group.count; from += kTakeSlice) {
      const uint32_t to = std::min(group.count, from + kTakeSlice);
      const MutexLock lock(mutex_);
      taken.resize(std::max<size_t>(taken.size(), locations_.allocated()));
      for (uint32_t at = from; at < to; ++at) {
        const Fingerprint f = fingerprint_at(group.fingerprints, at);
        uint32_t i = table_.find(tag_of(f), f, locations_).head;
        while (i != kNoLocation && locations_[i].segment != segment) i = locations_[i].chain_next;
        if (i == kNoLocation || taken[i]) continue;
        taken[i] = true;
        held.push_back(Held{f, locations_[i].length, namespaces_.id(locations_[i].ns)});
      }
    }
  }
  return held;
}

Usage DirectoryIndex::segment_usage(uint32_t segment) const {
  const MutexLock lock(mutex_);
  return segment < segments_.size() ? segments_[segment].usage : Usage{};
}

Usage DirectoryIndex::namespace_usage(const NamespaceId& ns) const {
  const MutexLock lock(mutex_);
  return namespaces_.usage(ns);
}

std::vector<std::pair<uint32_t, Usage>> DirectoryIndex::namespace_parts(const NamespaceId& ns) const {
  const MutexLock lock(mutex_);
  return namespaces_.parts(ns);
}

std::vector<std::pair<NamespaceId, Usage>> DirectoryIndex::namespace_usage() const {
  const MutexLock lock(mutex_);
  return namespaces_.all();
}

uint64_t DirectoryIndex::entry_count() const {
  const MutexLock lock(mutex_);
  return locations_.count();
}

uint64_t DirectoryIndex::memory_bytes() const {
  const MutexLock lock(mutex_);
  return table_.memory_bytes() + locations_.memory_bytes() + namespaces_.memory_bytes() +
         segments_.capacity() * sizeof(Segment);
}

}  // namespace kvstore
