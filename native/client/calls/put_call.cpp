#include "client/calls/put_call.hpp"

#include <algorithm>
#include <functional>

#include "client/calls/placement.hpp"

namespace kvstore {
namespace {

using wire::Status;

constexpr int kRoundsMax = 2;

// A failure of one segment that another one may not have.
bool worth_another_segment(Status status) {
  return status == Status::kNoSpace || status == Status::kUnavailable || status == Status::kTimeout;
}

// A put that takes less of a pool than this finds older objects to evict; what more takes is looked at again.
constexpr uint64_t kLargeShare = 4;
// What an object takes at least, for that: a slot, whatever its length.
constexpr uint64_t kSlotBytes = 8u << 10;

// All entries but those that can't be stored as they are: each of these has its own answer at once.
std::vector<uint32_t> storable_entries(const KeyBlock& keys, const Pieces& memory, const PutOptions& options,
                                       uint8_t* statuses) {
  std::vector<uint32_t> entries = sound_entries(memory, statuses);
  if (options.texts == nullptr) return entries;
  const auto unfit = [&](uint32_t entry) {
    if ((*options.texts)[entry / keys.shard_count].size() <= wire::kTextBytesMax) return false;
    statuses[entry] = static_cast<uint8_t>(Status::kTooLarge);
    return true;
  };
  entries.erase(std::remove_if(entries.begin(), entries.end(), unfit), entries.end());
  return entries;
}

}  // namespace

PutCall::PutCall(Cluster& cluster, const KeyBlock& keys, const Pieces& memory, const PutOptions& options,
                 const Deadline& deadline, uint8_t* statuses)
    : KeepingCall(cluster, keys, storable_entries(keys, memory, options, statuses), deadline, statuses),
      memory_(memory),
      options_(options) {}

PutCall::Attempt PutCall::attempt() {
  stored_.clear();
  there_.clear();
  failed_.clear();
  std::vector<uint32_t> pending = entries();
  for (int round = 0; round < kRoundsMax && !pending.empty(); ++round) {
    if (round > 0) {
      if (deadline().expired()) break;
      take_back_lost(&pending);
      if (RoomChoice::candidates(cluster().peers(), failed_).empty()) break;
    }
    if (send(&pending) == Attempt::kStaleNamespace) return Attempt::kStaleNamespace;
  }
  if (keep_what_is_there() == Attempt::kStaleNamespace) return Attempt::kStaleNamespace;
  check_own_evictions();
  if (options_.ack_committed) remember_stored();
  return Attempt::kDone;
}

void PutCall::remember_stored() {
  std::vector<ObjectLocation> where(keys().entry_count());
  std::vector<uint32_t> stored;
  for (const SegmentGroup& group : stored_)
    for (const uint32_t entry : group.entries) {
      if (status(entry) != Status::kOk) continue;  // it has evicted this one itself
      ObjectLocation& location = where[entry];
      const bool further = location.known();
      if (further && location.segments[1] != wire::kNoSegment) continue;
      location.segments[further ? 1 : 0] = group.peer->record().index;
      location.length = static_cast<uint32_t>(memory_.entry_bytes(entry));
      if (!further) stored.push_back(entry);
    }
  std::sort(stored.begin(), stored.end());
  remember(stored, where);
}

std::vector<uint8_t> PutCall::copies_stored() const {
  std::vector<uint8_t> copies(keys().entry_count(), 0);
  for (const SegmentGroup& group : stored_)
    for (const uint32_t entry : group.entries) ++copies[entry];
  return copies;
}

PutCall::Attempt PutCall::send(std::vector<uint32_t>* pending) {
  Placement placement;
  const Status placed = place(cluster(), keys().ns, fingerprints(), *pending, memory_, options_.replicas,
                              failed_, deadline(), &placement);
  if (placed == Status::kStaleNamespace) return Attempt::kStaleNamespace;
  if (placed == Status::kOk) confirm_namespace();
  if (placed != Status::kOk) set(*pending, placed);
  pending->clear();
  for (const auto& [entry, answer] : placement.answered) {
    set(entry, answer);
    if (answer == Status::kExists) there_.push_back(entry);
  }
  cluster().counters().add(Counter::kPutCopiesShort, placement.copies_short);

  TransportBatch put = batch(BatchKind::kPut);
  put.memory = &memory_;
  put.ack_committed = options_.ack_committed;
  put.depth = options_.depth;
  put.texts = options_.texts;
  put.wish = options_.wish;
  std::vector<std::vector<uint8_t>> further(placement.copies.empty() ? 0 : placement.copies.size() - 1);
  std::vector<Cluster::Part> parts;
  for (size_t copy = 0; copy < placement.copies.size(); ++copy) {
    if (copy > 0) {
      further[copy - 1].assign(keys().entry_count(), static_cast<uint8_t>(Status::kUnavailable));
      put.statuses = further[copy - 1].data();
    }
    for (Cluster::Part& part : Cluster::parts_of(placement.copies[copy], put))
      parts.push_back(std::move(part));
  }
  cluster().submit(parts, deadline());
  const uint8_t* outcomes = batch(BatchKind::kPut).statuses;
  for (size_t copy = 0; copy < placement.copies.size(); ++copy) {
    if (copy > 0) outcomes = further[copy - 1].data();
    if (take_outcomes(placement.copies[copy], copy, outcomes) == Attempt::kStaleNamespace)
      return Attempt::kStaleNamespace;
  }
  if (placement.copies.empty()) return Attempt::kDone;
  for (const auto& [segment, group] : placement.copies[0])
    for (const uint32_t entry : group.entries)
      if (worth_another_segment(status(entry))) pending->push_back(entry);
  std::sort(pending->begin(), pending->end());
  return Attempt::kDone;
}

PutCall::Attempt PutCall::take_outcomes(const SegmentGroups& groups, size_t copy, const uint8_t* statuses) {
  uint64_t copies = 0, copies_short = 0;
  for (const auto& [segment, group] : groups) {
    SegmentGroup stored{group.peer, {}};
    bool no_space = false;
    for (const uint32_t entry : group.entries) {
      const auto outcome = static_cast<Status>(statuses[entry]);
      if (outcome == Status::kStaleNamespace) return Attempt::kStaleNamespace;
      const bool is_there = outcome == Status::kOk || outcome == Status::kExists;
      if (outcome == Status::kOk) stored.entries.push_back(entry);
      no_space |= outcome == Status::kNoSpace;
      if (worth_another_segment(outcome)) failed_.insert(group.peer);
      copies += is_there && copy > 0;
      copies_short += !is_there && options_.replicas > 1;
      if (copy > 0 && is_there && status(entry) != Status::kOk && status(entry) != Status::kExists)
        set(entry, outcome);
    }
    if (no_space) group.peer->note_no_space();
    if (!stored.entries.empty()) stored_.push_back(std::move(stored));
  }
  cluster().counters().add(Counter::kPutCopies, copies);
  cluster().counters().add(Counter::kPutCopiesShort, copies_short);
  return Attempt::kDone;
}

void PutCall::take_back_lost(std::vector<uint32_t>* pending) {
  cluster().fetch_map(deadline());  // when it fails, the PLACE that follows will tell
  const auto peers = cluster().peers().all();
  const auto gone = [&](const SegmentGroup& group) {
    return std::none_of(peers.begin(), peers.end(), [&](const auto& p) { return p.second == group.peer; });
  };
  const auto first_lost = std::stable_partition(stored_.begin(), stored_.end(), std::not_fn(gone));
  const std::vector<SegmentGroup> lost(first_lost, stored_.end());
  stored_.erase(first_lost, stored_.end());
  const std::vector<uint8_t> left = copies_stored();
  for (const SegmentGroup& group : lost)
    for (const uint32_t entry : group.entries) {
      if (left[entry] > 0) continue;
      set(entry, Status::kUnavailable);
      pending->push_back(entry);
    }
  std::sort(pending->begin(), pending->end());
  pending->erase(std::unique(pending->begin(), pending->end()), pending->end());  // both copies may be lost
}

PutCall::Attempt PutCall::keep_what_is_there() {
  if (options_.wish.intent == wire::Intent::kNormal || there_.empty()) return Attempt::kDone;
  std::sort(there_.begin(), there_.end());  // of several rounds
  std::vector<uint8_t> outcomes(keys().entry_count(), static_cast<uint8_t>(Status::kUnavailable));
  return keep(there_, options_.wish, outcomes.data());  // a hint: the put has its answer whatever comes of it
}

void PutCall::check_own_evictions() {
  SegmentGroups large;
  for (const SegmentGroup& group : stored_) {
    uint64_t taken_bytes = 0;
    for (const uint32_t entry : group.entries)
      taken_bytes += std::max(memory_.entry_bytes(entry), kSlotBytes);
    if (taken_bytes >= group.peer->capacity_bytes() / kLargeShare)
      large.emplace(static_cast<uint32_t>(large.size()), group);
  }
  if (large.empty()) return;
  std::vector<std::vector<uint8_t>> found;
  std::vector<Cluster::Part> parts = Cluster::parts_of(large, batch(BatchKind::kPin));
  for (Cluster::Part& part : parts) {
    found.emplace_back(keys().entry_count(), static_cast<uint8_t>(Status::kUnavailable));
    part.batch.statuses = found.back().data();  // an entry may be in several
  }
  cluster().submit(parts, deadline());
  std::vector<uint8_t> copies = copies_stored();
  for (const Cluster::Part& part : parts)
    for (const uint32_t entry : part.batch.entries)
      if (part.batch.status(entry) == Status::kMiss && --copies[entry] == 0) set(entry, Status::kNoSpace);
}

void PutCall::count() {
  uint64_t bytes = 0, there = 0, conflicts = 0;
  bool refused = false;
  for (const uint32_t entry : entries()) {
    if (status(entry) == Status::kOk) bytes += memory_.entry_bytes(entry);
    refused |= status(entry) == Status::kNoSpace;
    there += status(entry) == Status::kExists;
    conflicts += status(entry) == Status::kConflict;
  }
  if (refused)
    cluster().counters().troubles.failed("room", Trouble::kNoRoom);
  else if (bytes > 0)
    cluster().counters().troubles.works("room");
  cluster().counters().add(Counter::kPutBytes, bytes);
  cluster().counters().add(Counter::kPutExists, there);
  cluster().counters().add(Counter::kPutConflicts, conflicts);
}

}  // namespace kvstore
