#include "client/calls/get_call.hpp"

#include <algorithm>

#include "client/calls/replica_choice.hpp"

namespace kvstore {
namespace {

using wire::Status;

// How long a report of a bad digest may take: it must not cost the caller what is left of the deadline.
constexpr int64_t kSuspectMs = 50;

}  // namespace

GetCall::Attempt GetCall::attempt() {
  std::vector<ObjectLocation> where(keys().entry_count());
  recall(entries(), &where);
  const std::vector<uint32_t> recalled = located(entries(), where),
                              unknown = located(entries(), where, false);
  cluster().counters().add(Counter::kLocationsUsed, recalled.size());
  Status looked_up = Status::kOk;
  if (const std::vector<uint32_t> asked = entries_to_ask(unknown, recalled); !asked.empty()) {
    std::vector<ObjectLocation> answer(keys().entry_count());
    looked_up = locate(asked, directory_deadline(unknown, recalled), &answer);
    if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
    set(unknown, looked_up == Status::kOk ? Status::kMiss : looked_up);
    for (const uint32_t entry : unknown) where[entry] = answer[entry];
  }
  const std::vector<uint32_t> wanted = located(entries(), where);
  set(wanted, Status::kUnavailable);
  std::vector<Suspect> suspects;
  if (get(wanted, &where, &suspects) == Attempt::kStaleNamespace) return Attempt::kStaleNamespace;
  learn(recalled, wanted, where, looked_up);
  if (!suspects.empty()) report(suspects);
  return Attempt::kDone;
}

void GetCall::learn(const std::vector<uint32_t>& recalled, const std::vector<uint32_t>& wanted,
                    const std::vector<ObjectLocation>& where, Status looked_up) {
  std::vector<uint32_t> got;
  for (const uint32_t entry : wanted)
    if (status(entry) == Status::kOk) got.push_back(entry);
  remember(got, where);
  if (looked_up == Status::kOk) return;
  const auto without = std::count_if(recalled.begin(), recalled.end(),
                                     [&](uint32_t entry) { return status(entry) == Status::kOk; });
  cluster().counters().add(Counter::kLocationsWithoutDirectory, static_cast<uint64_t>(without));
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
    std::vector<Cluster::Part> parts;
    std::vector<uint32_t> stuck = replicas.parts(pending, *where, get, deadline(), &parts);
    if (parts.empty()) {
      // Every holder we knew of has failed: the directory may know better by now, and is asked once.
      if (asked_again) break;
      asked_again = true;
      forget_missing(stuck);
      const Status looked_up = locate(stuck, deadline(), where);
      if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
      if (looked_up != Status::kOk) break;
      pending = located(stuck, *where);
      continue;
    }
    cluster().submit(parts, deadline());
    replicas.asked(parts);
    pending = std::move(stuck);
    for (const Cluster::Part& part : parts)
      for (const uint32_t entry : part.batch.entries) {
        if (status(entry) == Status::kOk) {
          if ((*where)[entry].segments[0] != part.segment)  // remembered is who had it
            std::swap((*where)[entry].segments[0], (*where)[entry].segments[1]);
          continue;
        }
        if (status(entry) == Status::kDigestMismatch) suspects->push_back({part.segment, entry});
        pending.push_back(entry);
      }
    std::sort(pending.begin(), pending.end());
    if (any_stale(pending)) return Attempt::kStaleNamespace;
  }
  return Attempt::kDone;
}

void GetCall::forget_missing(const std::vector<uint32_t>& entries) {
  std::vector<uint32_t> missing;
  for (const uint32_t entry : entries)
    if (status(entry) == Status::kMiss) missing.push_back(entry);
  forget(missing);
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
