#include "client/calls/replica_choice.hpp"

#include <algorithm>
#include <utility>

namespace kvstore {
namespace {

// Of what is left of a call, what a silent holder may take while another one can be asked.
constexpr int64_t kPatienceShare = 4;
constexpr int64_t kPatienceMsMax = 100;
// And one that was silent, or dead, when it was last asked.
constexpr int64_t kTroubledPatienceMsMax = 20;
// So many times as slow as another one is loaded.
constexpr uint64_t kSlowerBy = 2;

}  // namespace

bool ReplicaChoice::Tried::has(uint32_t segment) const {
  return std::find(segments.begin(), segments.begin() + count, segment) != segments.begin() + count;
}

void ReplicaChoice::Tried::add(uint32_t segment) {
  if (count < segments.size()) segments[count++] = segment;
}

const ReplicaChoice::Holder& ReplicaChoice::holder(uint32_t segment, Holders* holders) {
  const auto [at, fresh] = holders->emplace(segment, Holder{});
  if (fresh) {
    Holder& found = at->second;
    found.peer = cluster_.peers().find(segment);
    if (found.peer != nullptr && found.peer->readable()) {
      found.answers = found.peer->usable() ? Holder::Answers::kYes : Holder::Answers::kRefusing;
      found.near = found.peer->same_host();
      found.spared = found.peer->to_be_spared();
      found.troubled = found.peer->troubled();
      found.us_per_mib = found.peer->us_per_mib();
    }
  }
  return at->second;
}

bool ReplicaChoice::Holder::better_than(const Holder& other) const {
  if (spared != other.spared) return !spared;
  if (near != other.near) return near;
  return us_per_mib > 0 && us_per_mib * kSlowerBy < other.us_per_mib;
}

ReplicaChoice::Choice ReplicaChoice::choose(const ObjectLocation& where, const Tried& tried,
                                            Holders* holders) {
  Choice choice;
  for (const uint32_t segment : where.segments) {
    if (segment == wire::kNoSegment || tried.has(segment)) continue;
    const Holder& found = holder(segment, holders);
    if (found.answers == Holder::Answers::kRefusing) cluster_.counters().add(Counter::kBreakerRefusals);
    if (found.answers != Holder::Answers::kYes) continue;
    choice.is_last = choice.segment == wire::kNoSegment;
    if (choice.is_last || found.better_than(holder(choice.segment, holders))) choice.segment = segment;
  }
  return choice;
}

ReplicaChoice::Choice ReplicaChoice::choose_silent(Tried* tried, Holders* holders) {
  for (uint32_t& segment : tried->silent) {
    if (segment == wire::kNoSegment) continue;
    const uint32_t again = std::exchange(segment, wire::kNoSegment);
    if (holder(again, holders).answers == Holder::Answers::kYes) return {again, true};
  }
  return {};
}

void ReplicaChoice::asked(const std::vector<Cluster::Part>& parts) {
  for (const Cluster::Part& part : parts) {
    if (part.stall_ms == 0) continue;
    for (const uint32_t entry : part.batch.entries) {
      if (part.batch.status(entry) != wire::Status::kTimeout) continue;
      auto& silent = tried_[entry].silent;
      silent[silent[0] == wire::kNoSegment ? 0 : 1] = part.segment;
    }
  }
}

std::vector<uint32_t> ReplicaChoice::parts(const std::vector<uint32_t>& entries,
                                           const std::vector<ObjectLocation>& where,
                                           const TransportBatch& prototype, const Deadline& deadline,
                                           std::vector<Cluster::Part>* parts) {
  std::vector<uint32_t> stuck;
  Holders holders;
  SegmentGroups last, not_last;
  for (const uint32_t entry : entries) {
    Choice choice = choose(where[entry], tried_[entry], &holders);
    if (choice.segment == wire::kNoSegment) choice = choose_silent(&tried_[entry], &holders);
    if (choice.segment == wire::kNoSegment) {
      stuck.push_back(entry);
      continue;
    }
    SegmentGroup& group = (choice.is_last ? last : not_last)[choice.segment];
    group.peer = holders[choice.segment].peer;
    group.entries.push_back(entry);
    tried_[entry].add(choice.segment);
  }
  for (Cluster::Part& part : Cluster::parts_of(last, prototype)) parts->push_back(std::move(part));
  const int64_t patience_ms = std::clamp<int64_t>(deadline.left_ms() / kPatienceShare, 1, kPatienceMsMax);
  for (const auto& [segment, group] : not_last) {
    Cluster::Part part{group.peer, prototype, segment};
    part.batch.entries = group.entries;
    const bool troubled = holders[segment].troubled;
    part.stall_ms = static_cast<int>(troubled ? std::min(patience_ms, kTroubledPatienceMsMax) : patience_ms);
    parts->push_back(std::move(part));
  }
  return stuck;
}

}  // namespace kvstore
