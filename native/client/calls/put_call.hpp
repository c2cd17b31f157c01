// put: stores what is absent.
//
//   already there, or there with another length -> EXISTS, CONFLICT, and nothing is sent but what the put wants kept
//   NO_SPACE, UNAVAILABLE, TIMEOUT at a segment -> once more, at another segment that takes puts, never the same
//   a segment gone that had stored a part of it -> that part once more, when the call places anything again
//   large against its segment                   -> what it evicted of its own pages is NO_SPACE, not OK
//   several copies                              -> to as many segments at once; one that is stored is enough, and only what
//                                                  has none is tried again. What is there in too few gets the others
#pragma once

#include <string_view>
#include <vector>

#include "client/calls/keep_call.hpp"
#include "client/calls/page_call.hpp"
#include "client/calls/room_choice.hpp"

namespace kvstore {

struct PutOptions {
  bool ack_committed = true;
  uint32_t depth = 0;                                    // of key 0
  const std::vector<std::string_view>* texts = nullptr;  // one a key, or null: what people read
  wire::KeepWish wish{};                                 // of all entries
  uint32_t replicas = 1;                                 // copies of each, at most wire::kReplicasMax
};

class PutCall : public KeepingCall {
 public:
  // `memory` and what `options` points to outlive the call.
  PutCall(Cluster& cluster, const KeyBlock& keys, const Pieces& memory, const PutOptions& options,
          const Deadline& deadline, uint8_t* statuses);

  // What only puts count.
  void count();

 private:
  Attempt attempt() override;
  // Places and sends `pending` once; what is worth another segment comes back in it.
  Attempt send(std::vector<uint32_t>* pending);
  // What has become of the copies number `copy` of `groups`: `statuses` has one an entry of the call.
  Attempt take_outcomes(const SegmentGroups& groups, size_t copy, const uint8_t* statuses);
  // Of all entries, how many segments have them by this call.
  std::vector<uint8_t> copies_stored() const;
  // Moves to `pending` what was stored at segments that are no more.
  void take_back_lost(std::vector<uint32_t>* pending);
  // What was there has no answer to the put's wish yet.
  Attempt keep_what_is_there();
  void check_own_evictions();
  // Where what is durable now lies.
  void remember_stored();

  const Pieces& memory_;
  const PutOptions options_;
  PeerSet failed_;               // segments that this call goes to no more
  std::vector<uint32_t> there_;  // what the directory said is there already
  std::vector<SegmentGroup>
      stored_;  // what is OK, by the segment that has it; in several where there are several copies
};

}  // namespace kvstore
