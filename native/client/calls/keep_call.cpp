#include "client/calls/keep_call.hpp"

#include <algorithm>

namespace kvstore {

using wire::Status;

namespace {

// Of the answers of two holders the one that says more: one that keeps the page is enough.
int rank(Status status) {
  switch (status) {
    case Status::kOk:
      return 3;
    case Status::kNoSpace:
      return 2;
    case Status::kMiss:
      return 0;
    default:
      return 1;
  }
}

}  // namespace

KeepingCall::Attempt KeepingCall::keep(const std::vector<uint32_t>& entries, const wire::KeepWish& wish,
                                       uint8_t* outcomes) {
  std::vector<ObjectLocation> where(keys().entry_count());
  recall(entries, &where);
  const std::vector<uint32_t> recalled = located(entries, where), unknown = located(entries, where, false);
  const std::vector<uint32_t> asked = entries_to_ask(unknown, recalled);
  cluster().counters().add(Counter::kLocationsUsed, recalled.size());
  Status looked_up = Status::kOk;
  if (!asked.empty()) {
    std::vector<ObjectLocation> answer(keys().entry_count());
    looked_up = locate(asked, directory_deadline(unknown, recalled), &answer);
    if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
    for (const uint32_t entry : unknown) where[entry] = answer[entry];
  }
  const Status absent = looked_up == Status::kOk ? Status::kMiss : looked_up;
  for (const uint32_t entry : unknown) outcomes[entry] = static_cast<uint8_t>(absent);
  if (send(located(entries, where), where, wish, outcomes) == Attempt::kStaleNamespace)
    return Attempt::kStaleNamespace;

  std::vector<uint32_t> moved;
  for (const uint32_t entry : recalled)
    if (outcomes[entry] == static_cast<uint8_t>(Status::kMiss)) moved.push_back(entry);
  if (!moved.empty()) {
    forget(moved);
    for (const uint32_t entry : moved) where[entry] = ObjectLocation{};
    if (locate(moved, deadline(), &where) == Status::kStaleNamespace) return Attempt::kStaleNamespace;
    if (send(located(moved, where), where, wish, outcomes) == Attempt::kStaleNamespace)
      return Attempt::kStaleNamespace;
  }
  const auto over = [&](uint32_t entry) { return outcomes[entry] == static_cast<uint8_t>(Status::kNoSpace); };
  cluster().counters().add(Counter::kKeepRefused,
                           static_cast<uint64_t>(std::count_if(entries.begin(), entries.end(), over)));
  return Attempt::kDone;
}

KeepingCall::Attempt KeepingCall::send(const std::vector<uint32_t>& entries,
                                       const std::vector<ObjectLocation>& where, const wire::KeepWish& wish,
                                       uint8_t* outcomes) {
  PeerFinder finder(cluster(), deadline());
  std::vector<std::vector<uint8_t>> answers(kReplicasTried);  // of the n-th holders
  std::vector<Cluster::Part> parts;
  for (uint32_t replica = 0; replica < kReplicasTried; ++replica) {
    SegmentGroups groups;
    for (const uint32_t entry : entries) {
      const uint32_t segment = where[entry].segments[replica];
      if (segment == wire::kNoSegment) continue;
      SegmentGroup& group = groups[segment];
      group.peer = finder.find(segment);
      group.entries.push_back(entry);
    }
    if (groups.empty()) continue;
    answers[replica].assign(keys().entry_count(), static_cast<uint8_t>(Status::kUnavailable));
    TransportBatch keep = batch(BatchKind::kKeep);
    keep.statuses = answers[replica].data();
    keep.wish = wish;
    for (Cluster::Part& part : Cluster::parts_of(groups, keep)) parts.push_back(std::move(part));
  }
  if (parts.empty()) return Attempt::kDone;
  cluster().submit(parts, deadline());
  for (const uint32_t entry : entries) {
    auto best = Status::kMiss;
    for (uint32_t replica = 0; replica < kReplicasTried; ++replica) {
      if (where[entry].segments[replica] == wire::kNoSegment) continue;
      const auto answer = static_cast<Status>(answers[replica][entry]);
      if (answer == Status::kStaleNamespace) return Attempt::kStaleNamespace;
      if (rank(answer) > rank(best)) best = answer;
    }
    outcomes[entry] = static_cast<uint8_t>(best);
  }
  return Attempt::kDone;
}

}  // namespace kvstore
