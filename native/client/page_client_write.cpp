// put, remove.
#include <algorithm>

#include "client/page_client_internal.hpp"

namespace kvstore {
namespace {

using wire::Status;

constexpr CallCounters kPutCounters{Counter::kPutCalls, Counter::kPutKeys, Counter::kPutHits,
                                    Counter::kPutMisses, Counter::kPutFailures};
constexpr CallCounters kRemoveCounters{Counter::kRemoveCalls, Counter::kRemoveKeys, Counter::kRemoveHits,
                                       Counter::kRemoveMisses, Counter::kRemoveFailures};

// Every replica there can be, for remove.
constexpr uint32_t kReplicasMax = 4;

// Failures of one segment that another one may not have.
bool worth_another_segment(Status status) {
  return status == Status::kNoSpace || status == Status::kUnavailable || status == Status::kTimeout;
}

uint32_t near_segment(const SegmentPeers& peers) {
  for (const auto& [index, peer] : peers.all())
    if (peer->same_host() && peer->takes_puts()) return index;
  return wire::kNoSegment;
}

// The segment with the most room among those that take puts, or kNoSegment.
uint32_t roomiest_segment(const SegmentPeers& peers) {
  uint32_t best = wire::kNoSegment;
  uint64_t best_free = 0;
  for (const auto& [index, peer] : peers.all()) {
    if (!peer->takes_puts()) continue;
    const SegmentRecord record = peer->record();
    const uint64_t free = record.capacity_bytes - std::min(record.used_bytes, record.capacity_bytes);
    if (best == wire::kNoSegment || free > best_free) best = index, best_free = free;
  }
  return best;
}

}  // namespace

void PageClient::put(int handle, const KeyBlock& keys, const Pieces& memory, const PutOptions& options,
                     const Deadline& deadline, uint8_t* statuses) {
  Call call{keys, deadline, statuses};
  call.set_all(Status::kUnavailable);
  const CallGuard guard(*this);
  if (guard.core() == nullptr) return;
  in_namespace(*guard.core(), handle, call,
               [&] { return put_entries(*guard.core(), call, memory, options); });
  count_call(counters_, kPutCounters, statuses, keys.entry_count());
  uint64_t bytes = 0, there = 0, conflicts = 0;
  bool refused = false;
  for (uint32_t i = 0; i < keys.entry_count(); ++i) {
    if (call.status(i) == Status::kOk) bytes += memory.entry_bytes(i);
    there += call.status(i) == Status::kExists;
    refused |= call.status(i) == Status::kNoSpace;
    conflicts += call.status(i) == Status::kConflict;
  }
  if (refused)
    counters_.troubles.failed("room", Trouble::kNoRoom);
  else if (bytes > 0)
    counters_.troubles.works("room");
  counters_.add(Counter::kPutBytes, bytes);
  counters_.add(Counter::kPutExists, there);
  counters_.add(Counter::kPutConflicts, conflicts);
}

bool PageClient::put_entries(Core& core, Call& call, const Pieces& memory, const PutOptions& options) {
  TransportBatch batch;
  batch.kind = BatchKind::kPut;
  batch.memory = &memory;
  batch.ack_committed = options.ack_committed;
  batch.depth = options.depth;
  batch.texts = options.texts;
  std::vector<uint32_t> pending = call.all_entries();
  for (int attempt = 0; attempt < 2 && !pending.empty() && !call.deadline.expired(); ++attempt) {
    if (const Status status = refresh_map(core, call.deadline, false); status != Status::kOk) {
      for (const uint32_t entry : pending) call.set(entry, status);
      return true;
    }
    std::vector<uint32_t> lengths(pending.size());
    for (size_t i = 0; i < pending.size(); ++i)
      lengths[i] = static_cast<uint32_t>(memory.entry_bytes(pending[i]));
    std::vector<uint32_t> placed;
    Status status = core.directory.place(call.keys.ns, call.fingerprints_of(pending), lengths,
                                         near_segment(core.peers), call.deadline, &placed);
    if (status == Status::kStaleNamespace) return false;
    if (status == Status::kOk) status = refresh_map(core, call.deadline, false);
    if (status != Status::kOk) {
      for (const uint32_t entry : pending) call.set(entry, status);
      return true;
    }
    Groups groups;
    bool map_forced = false;
    for (size_t i = 0; i < pending.size(); ++i) {
      uint32_t segment = placed[i];
      if (segment == wire::kAlreadyThere) {
        call.set(pending[i], Status::kExists);
        continue;
      }
      if (segment == wire::kOtherLength) {
        call.set(pending[i], Status::kConflict);
        continue;
      }
      if (segment == wire::kNoSegment) {
        call.set(pending[i], Status::kNoSpace);
        continue;
      }
      auto peer = core.peers.find(segment);
      if (peer == nullptr && !map_forced) {
        map_forced = true;
        refresh_map(core, call.deadline, true);
        peer = core.peers.find(segment);
      }
      // The directory does not know yet what this client has just learned about a segment. It learns of every object from the
      // segment that has it, so any other one will do.
      if (peer == nullptr || !peer->takes_puts()) segment = roomiest_segment(core.peers);
      if (segment == wire::kNoSegment) {
        if (attempt == 0) call.set(pending[i], Status::kUnavailable);
        continue;
      }
      groups[segment].push_back(pending[i]);
    }
    submit(core, call, groups, batch);
    pending.clear();
    for (const auto& [segment, entries] : groups) {
      const auto peer = core.peers.find(segment);
      for (const uint32_t entry : entries) {
        if (call.status(entry) == Status::kStaleNamespace) return false;
        if (!worth_another_segment(call.status(entry))) continue;
        if (call.status(entry) == Status::kNoSpace && peer != nullptr) peer->note_no_space();
        pending.push_back(entry);
      }
    }
    if (roomiest_segment(core.peers) == wire::kNoSegment) break;  // no other segment to go to
    std::sort(pending.begin(), pending.end());
  }
  return true;
}

void PageClient::remove(int handle, const KeyBlock& keys, const Deadline& deadline, uint8_t* statuses) {
  Call call{keys, deadline, statuses};
  call.set_all(Status::kUnavailable);
  const CallGuard guard(*this);
  if (guard.core() == nullptr) return;
  in_namespace(*guard.core(), handle, call, [&] { return remove_entries(*guard.core(), call); });
  count_call(counters_, kRemoveCounters, statuses, keys.entry_count());
}

bool PageClient::remove_entries(Core& core, Call& call) {
  const std::vector<uint32_t> all = call.all_entries();
  core.locations.forget(call.fingerprints, all);
  DirectoryClient::Holders holders;
  Status status =
      core.directory.lookup(call.keys.ns, call.fingerprints, kReplicasMax, call.deadline, &holders);
  if (status == Status::kStaleNamespace) return false;
  if (status == Status::kOk) status = refresh_map(core, call.deadline, false);
  if (status != Status::kOk) {
    call.set_all(status);
    return true;
  }
  call.set_all(Status::kMiss);
  TransportBatch batch;
  batch.kind = BatchKind::kRemove;
  for (uint32_t replica = 0; replica < kReplicasMax; ++replica) {
    Groups groups;
    for (const uint32_t entry : all)
      if (const uint32_t segment = holders.segment(replica, entry); segment != wire::kNoSegment)
        groups[segment].push_back(entry);
    if (groups.empty()) continue;
    std::vector<uint8_t> outcome(all.size(), static_cast<uint8_t>(Status::kMiss));
    Call round{call.keys, call.deadline, outcome.data()};
    submit(core, round, groups, batch);
    for (const auto& [segment, entries] : groups)
      for (const uint32_t entry : entries) {
        if (round.status(entry) == Status::kStaleNamespace) return false;
        // Removed means removed everywhere: a failure outweighs a success, a success outweighs a miss.
        const bool failed = call.status(entry) != Status::kOk && call.status(entry) != Status::kMiss;
        if (!failed && round.status(entry) != Status::kMiss) call.set(entry, round.status(entry));
      }
  }
  return true;
}

}  // namespace kvstore
