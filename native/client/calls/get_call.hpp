// get: bytes into the caller's memory, from whichever replica has them.
//
//   a location that this client knows      -> straight to the segment, no master asked
//   no location                            -> asked of the directory
//   MISS, UNAVAILABLE, TIMEOUT, bad bytes  -> the other replica
//   every known replica failed             -> the directory once more (the page may have moved)
//   bad bytes                              -> the segment is told, so that it checks and quarantines its slot
#pragma once

#include <vector>

#include "client/calls/page_call.hpp"

namespace kvstore {

class GetCall : public PageCall {
 public:
  // `memory` has the entries of the call and outlives it; only `entries` are got.
  GetCall(Cluster& cluster, const KeyBlock& keys, std::vector<uint32_t> entries, const Pieces& memory,
          const Deadline& deadline, uint8_t* statuses)
      : PageCall(cluster, keys, std::move(entries), deadline, statuses), memory_(memory) {}

  // Of the entries that are OK after run().
  uint64_t bytes() const;

 private:
  struct Suspect {
    uint32_t segment;
    uint32_t entry;
  };

  Attempt attempt() override;
  Attempt get(std::vector<uint32_t> pending, std::vector<ObjectLocation>* where,
              std::vector<Suspect>* suspects);
  void report(const std::vector<Suspect>& suspects);
  // Keeps the locations of what was got, and counts what was without a master.
  void learn(const std::vector<uint32_t>& recalled, const std::vector<uint32_t>& wanted,
             const std::vector<ObjectLocation>& where, wire::Status looked_up);
  void forget_missing(const std::vector<uint32_t>& entries);

  const Pieces& memory_;
};

}  // namespace kvstore
