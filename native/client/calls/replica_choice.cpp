#include "client/calls/replica_choice.hpp"

#include <algorithm>

namespace kvstore {

bool ReplicaChoice::Tried::has(uint32_t segment) const {
  return std::find(segments.begin(), segments.begin() + count, segment) != segments.begin() + count;
}

void ReplicaChoice::Tried::add(uint32_t segment) {
  if (count < segments.size()) segments[count++] = segment;
}

const ReplicaChoice::Holder& ReplicaChoice::holder(uint32_t segment, Holders* holders) {
  const auto [at, fresh] = holders->emplace(segment, Holder{});
  if (fresh) {
    at->second.peer = cluster_.peers().find(segment);
    if (at->second.peer != nullptr && at->second.peer->readable())
      at->second.answers = at->second.peer->usable() ? Holder::Answers::kYes : Holder::Answers::kRefusing;
  }
  return at->second;
}

uint32_t ReplicaChoice::choose(const ObjectLocation& where, const Tried& tried, Holders* holders) {
  for (const uint32_t segment : where.segments) {
    if (segment == wire::kNoSegment || tried.has(segment)) continue;
    const Holder::Answers answers = holder(segment, holders).answers;
    if (answers == Holder::Answers::kYes) return segment;
    if (answers == Holder::Answers::kRefusing) cluster_.counters().add(Counter::kBreakerRefusals);
  }
  return wire::kNoSegment;
}

std::vector<uint32_t> ReplicaChoice::group(const std::vector<uint32_t>& entries,
                                           const std::vector<ObjectLocation>& where, SegmentGroups* groups) {
  std::vector<uint32_t> stuck;
  Holders holders;
  for (const uint32_t entry : entries) {
    const uint32_t segment = choose(where[entry], tried_[entry], &holders);
    if (segment == wire::kNoSegment) {
      stuck.push_back(entry);
      continue;
    }
    SegmentGroup& group = (*groups)[segment];
    group.peer = holders[segment].peer;
    group.entries.push_back(entry);
    tried_[entry].add(segment);
  }
  return stuck;
}

}  // namespace kvstore
