#include "client/calls/get_call.hpp"

#include <algorithm>

#include "client/calls/replica_choice.hpp"

namespace kvstore {
namespace {

using wire::Status;

// How long a report of a bad digest may take: it must not cost the caller what is left of the deadline.
constexpr int64_t kSuspectMs = 50;

std::vector<uint32_t> known(const std::vector<uint32_t>& entries, const std::vector<ObjectLocation>& where,
                            bool wanted = true) {
  std::vector<uint32_t> some;
  for (const uint32_t entry : entries)
    if (where[entry].known() == wanted) some.push_back(entry);
  return some;
}

}  // namespace

GetCall::Attempt GetCall::attempt() {
  std::vector<ObjectLocation> where(keys().entry_count());
  cluster().locations().find(fingerprints(), entries(), Deadline::Clock::now(), &where);
  if (const std::vector<uint32_t> unknown = known(entries(), where, false); !unknown.empty()) {
    const Status looked_up = cluster().locate(keys().ns, fingerprints(), unknown, deadline(), &where);
    if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
    set(unknown, looked_up == Status::kOk ? Status::kMiss : looked_up);
  }
  std::vector<uint32_t> pending = known(entries(), where);
  set(pending, Status::kUnavailable);
  std::vector<Suspect> suspects;
  if (get(std::move(pending), &where, &suspects) == Attempt::kStaleNamespace) return Attempt::kStaleNamespace;
  if (!suspects.empty()) report(suspects);
  return Attempt::kDone;
}

GetCall::Attempt GetCall::get(std::vector<uint32_t> pending, std::vector<ObjectLocation>* where,
                              std::vector<Suspect>* suspects) {
  ReplicaChoice replicas(cluster(), keys().entry_count());
  TransportBatch get = batch(BatchKind::kGet);
  get.memory = &memory_;
  bool asked_again = false;
  while (!pending.empty()) {
    if (deadline().expired()) {
      for (const uint32_t entry : pending)
        if (status(entry) == Status::kUnavailable) set(entry, Status::kTimeout);
      break;
    }
    SegmentGroups groups;
    std::vector<uint32_t> stuck = replicas.group(pending, *where, &groups);
    if (groups.empty()) {
      // Every holder we knew of has failed: the directory may know better by now, and is asked once.
      if (asked_again) break;
      asked_again = true;
      cluster().locations().forget(fingerprints(), stuck);
      const Status looked_up = cluster().locate(keys().ns, fingerprints(), stuck, deadline(), where);
      if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
      if (looked_up != Status::kOk) break;
      pending = known(stuck, *where);
      continue;
    }
    cluster().submit(groups, get, deadline());
    pending = std::move(stuck);
    for (const auto& [segment, group] : groups)
      for (const uint32_t entry : group.entries) {
        if (status(entry) == Status::kOk) continue;
        if (status(entry) == Status::kDigestMismatch) suspects->push_back({segment, entry});
        pending.push_back(entry);
      }
    std::sort(pending.begin(), pending.end());
    if (any_stale(pending)) return Attempt::kStaleNamespace;
  }
  return Attempt::kDone;
}

void GetCall::report(const std::vector<Suspect>& suspects) {
  std::map<uint32_t, std::vector<uint32_t>> by_segment;
  for (const auto& [segment, entry] : suspects) by_segment[segment].push_back(entry);
  std::vector<uint8_t> verdicts(keys().entry_count(), 0);  // our own statuses stay what the get made them
  for (auto& [segment, entries] : by_segment) {
    const auto peer = cluster().peers().find(segment);
    if (peer == nullptr || deadline().expired()) continue;
    std::sort(entries.begin(), entries.end());
    TransportBatch suspect = batch(BatchKind::kSuspect);
    suspect.statuses = verdicts.data();
    suspect.entries = entries;
    peer->submit(suspect, deadline().within_ms(kSuspectMs));
    for (const uint32_t entry : entries)
      if (suspect.status(entry) == Status::kDigestMismatch)
        cluster().counters().add(Counter::kSuspectsConfirmed);
  }
}

uint64_t GetCall::bytes() const {
  uint64_t bytes = 0;
  for (const uint32_t entry : entries())
    if (status(entry) == Status::kOk) bytes += memory_.entry_bytes(entry);
  return bytes;
}

}  // namespace kvstore
