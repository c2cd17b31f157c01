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
      where[entry].segments[0] = group.peer->record().index;
      where[entry].length = static_cast<uint32_t>(memory_.entry_bytes(entry));
      stored.push_back(entry);
    }
  remember(stored, where);
}

PutCall::Attempt PutCall::send(std::vector<uint32_t>* pending) {
  Placement placement;
  const Status placed =
      place(cluster(), keys().ns, fingerprints(), *pending, memory_, failed_, deadline(), &placement);
  if (placed == Status::kStaleNamespace) return Attempt::kStaleNamespace;
  if (placed == Status::kOk) confirm_namespace();
  if (placed != Status::kOk) set(*pending, placed);
  pending->clear();
  for (const auto& [entry, answer] : placement.answered) {
    set(entry, answer);
    if (answer == Status::kExists) there_.push_back(entry);
  }

  TransportBatch put = batch(BatchKind::kPut);
  put.memory = &memory_;
  put.ack_committed = options_.ack_committed;
  put.depth = options_.depth;
  put.texts = options_.texts;
  put.wish = options_.wish;
  cluster().submit(placement.groups, put, deadline());
  for (const auto& [segment, group] : placement.groups) {
    if (any_stale(group.entries)) return Attempt::kStaleNamespace;
    SegmentGroup stored{group.peer, {}};
    bool no_space = false;
    for (const uint32_t entry : group.entries) {
      if (status(entry) == Status::kOk) stored.entries.push_back(entry);
      no_space |= status(entry) == Status::kNoSpace;
      if (!worth_another_segment(status(entry))) continue;
      pending->push_back(entry);
      failed_.insert(group.peer);
    }
    if (no_space) group.peer->note_no_space();
    if (!stored.entries.empty()) stored_.push_back(std::move(stored));
  }
  std::sort(pending->begin(), pending->end());
  return Attempt::kDone;
}

void PutCall::take_back_lost(std::vector<uint32_t>* pending) {
  cluster().fetch_map(deadline());  // when it fails, the PLACE that follows will tell
  const auto peers = cluster().peers().all();
  const auto gone = [&](const SegmentGroup& group) {
    return std::none_of(peers.begin(), peers.end(), [&](const auto& p) { return p.second == group.peer; });
  };
  const auto lost = std::stable_partition(stored_.begin(), stored_.end(), std::not_fn(gone));
  for (auto group = lost; group != stored_.end(); ++group) {
    set(group->entries, Status::kUnavailable);
    pending->insert(pending->end(), group->entries.begin(), group->entries.end());
  }
  stored_.erase(lost, stored_.end());
  std::sort(pending->begin(), pending->end());
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
  std::vector<uint8_t> found(keys().entry_count(), static_cast<uint8_t>(Status::kUnavailable));
  TransportBatch look = batch(BatchKind::kPin);
  look.statuses = found.data();
  cluster().submit(large, look, deadline());
  for (const auto& [ordinal, group] : large)
    for (const uint32_t entry : group.entries)
      if (found[entry] == static_cast<uint8_t>(Status::kMiss)) set(entry, Status::kNoSpace);
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
