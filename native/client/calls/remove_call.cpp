#include "client/calls/remove_call.hpp"

namespace kvstore {

using wire::kReplicasMax;
using wire::Status;

RemoveCall::Attempt RemoveCall::attempt() {
  cluster().locations().forget(fingerprints(), entries());
  DirectoryClient::Holders holders;
  Status looked_up =
      cluster().directory().lookup(keys().ns, fingerprints(), kReplicasMax, deadline(), &holders);
  if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
  if (looked_up == Status::kOk) looked_up = cluster().refresh_map(deadline());
  if (looked_up != Status::kOk) {
    set(entries(), looked_up);
    return Attempt::kDone;
  }
  set(entries(), Status::kMiss);
  std::vector<uint8_t> outcomes(entries().size(), static_cast<uint8_t>(Status::kUnavailable));
  TransportBatch remove = batch(BatchKind::kRemove);
  remove.statuses = outcomes.data();
  PeerFinder finder(cluster(), deadline());
  for (uint32_t replica = 0; replica < kReplicasMax; ++replica) {
    SegmentGroups groups;
    for (const uint32_t entry : entries()) {
      const uint32_t segment = holders.segment(replica, entry);
      if (segment == wire::kNoSegment) continue;
      SegmentGroup& group = groups[segment];
      group.peer = finder.find(segment);
      group.entries.push_back(entry);
    }
    if (groups.empty()) continue;
    cluster().submit(groups, remove, deadline());
    for (const auto& [segment, group] : groups)
      for (const uint32_t entry : group.entries) {
        const auto outcome = static_cast<Status>(outcomes[entry]);
        if (outcome == Status::kStaleNamespace) return Attempt::kStaleNamespace;
        const bool failed = status(entry) != Status::kOk && status(entry) != Status::kMiss;
        if (!failed && outcome != Status::kMiss) set(entry, outcome);
      }
  }
  return Attempt::kDone;
}

}  // namespace kvstore
