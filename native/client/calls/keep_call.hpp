// keep: says at the segments that have them what is to become of pages when space runs short.
//
//   a location that this client knows -> KEEP at its holders, no master asked
//   no location                       -> asked of the directory, then KEEP at the holders
//   MISS where it was known to be     -> the directory once more
//   over the budget of a segment      -> NO_SPACE, unless another holder retains it
#pragma once

#include <vector>

#include "client/calls/page_call.hpp"

namespace kvstore {

// What a put has in common with it: pages that are there already.
class KeepingCall : public PageCall {
 protected:
  using PageCall::PageCall;
  // The answers for `entries` (ascending) go to `outcomes`, one an entry of the call.
  Attempt keep(const std::vector<uint32_t>& entries, const wire::KeepWish& wish, uint8_t* outcomes);

 private:
  // KEEP at all holders that `where` names. The best answer of each counts.
  Attempt send(const std::vector<uint32_t>& entries, const std::vector<ObjectLocation>& where,
               const wire::KeepWish& wish, uint8_t* outcomes);
};

class KeepCall : public KeepingCall {
 public:
  KeepCall(Cluster& cluster, const KeyBlock& keys, const wire::KeepWish& wish, const Deadline& deadline,
           uint8_t* statuses)
      : KeepingCall(cluster, keys, all_entries(keys), deadline, statuses), wish_(wish), outcomes_(statuses) {}

 private:
  Attempt attempt() override { return keep(entries(), wish_, outcomes_); }

  const wire::KeepWish wish_;
  uint8_t* const outcomes_;
};

}  // namespace kvstore
