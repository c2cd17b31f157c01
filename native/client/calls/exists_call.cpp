#include "client/calls/exists_call.hpp"

#include <algorithm>

#include "client/calls/replica_choice.hpp"

namespace kvstore {

using wire::Status;

ExistsCall::Attempt ExistsCall::ask_directory() {
  std::vector<uint8_t> found;
  const Status status = cluster().directory().exists(keys().ns, fingerprints(), deadline(), &found);
  if (status == Status::kStaleNamespace) return Attempt::kStaleNamespace;
  for (const uint32_t entry : entries())
    set(entry, status != Status::kOk ? status : found[entry] != 0 ? Status::kOk : Status::kMiss);
  return Attempt::kDone;
}

ExistsCall::Attempt ExistsCall::confirm_and_pin() {
  std::vector<ObjectLocation> where(entries().size());
  const Status looked_up = cluster().locate(keys().ns, fingerprints(), entries(), deadline(), &where);
  if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
  if (looked_up != Status::kOk) {
    set(entries(), looked_up);
    return Attempt::kDone;
  }
  std::vector<uint32_t> pending;
  for (const uint32_t entry : entries()) {
    set(entry, where[entry].known() ? Status::kUnavailable : Status::kMiss);
    if (where[entry].known()) pending.push_back(entry);
  }
  ReplicaChoice replicas(cluster(), entries().size());
  TransportBatch pin = batch(BatchKind::kPin);
  pin.pin_ms = pin_ms_;
  while (!pending.empty() && !deadline().expired()) {
    SegmentGroups groups;
    replicas.group(pending, where, &groups);  // what has no holder left keeps its last answer
    if (groups.empty()) break;
    cluster().submit(groups, pin, deadline());
    pending.clear();
    for (const auto& [segment, group] : groups)
      for (const uint32_t entry : group.entries) {
        if (status(entry) != Status::kOk) {
          pending.push_back(entry);
        } else if (where[entry].segments[0] != segment) {
          std::swap(where[entry].segments[0], where[entry].segments[1]);  // a get goes to where the pin is
        }
      }
    if (any_stale(pending)) return Attempt::kStaleNamespace;
    std::sort(pending.begin(), pending.end());
  }
  remember(where);
  return Attempt::kDone;
}

void ExistsCall::remember(const std::vector<ObjectLocation>& where) {
  std::vector<uint32_t> confirmed, gone;
  for (const uint32_t entry : entries()) (status(entry) == Status::kOk ? confirmed : gone).push_back(entry);
  const auto now = Deadline::Clock::now();
  const auto ttl = std::chrono::milliseconds(std::min<int64_t>(pin_ms_, kLocationTtlMs));
  cluster().locations().store(fingerprints(), confirmed, where, now, now + ttl);
  cluster().locations().forget(fingerprints(), gone);
}

}  // namespace kvstore
