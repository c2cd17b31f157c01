// exists: what the directory knows; with a pin, what the segments confirm and then keep for that long.
//
//   a location that this client knows      -> PIN at its segment, no master asked; never answered from memory alone
//   no location, few segments              -> PIN at each of them beside the look-up: one round trip in place of two
//   no location                            -> asked of the directory, then PIN at the holders
//   PIN says MISS, or does not arrive      -> the directory once more, then the other replica
//   no pin wanted                          -> the directory; while it is away, the segments of what is known
#pragma once

#include <map>
#include <vector>

#include "client/calls/page_call.hpp"
#include "client/calls/replica_choice.hpp"

namespace kvstore {

class ExistsCall : public PageCall {
 public:
  // `pin_ms` 0: only the directory is asked, where it answers.
  ExistsCall(Cluster& cluster, const KeyBlock& keys, uint32_t pin_ms, const Deadline& deadline,
             uint8_t* statuses)
      : PageCall(cluster, keys, all_entries(keys), deadline, statuses), pin_ms_(pin_ms) {}

 private:
  // The answers of segments to pins that went out before anybody knew who has the page.
  using Guesses = std::map<uint32_t, std::vector<uint8_t>>;  // by segment: a status an entry

  Attempt attempt() override { return pin_ms_ > 0 ? confirm_and_pin() : ask_directory(); }
  Attempt ask_directory();
  Attempt confirm_and_pin();
  // The first round: PINs of `recalled`, and of guesses, beside the look-up of `asked`. Its status comes back.
  wire::Status pin_and_locate(const std::vector<uint32_t>& recalled, const std::vector<uint32_t>& unknown,
                              const std::vector<uint32_t>& asked, std::vector<ObjectLocation>* where,
                              ReplicaChoice* replicas, Guesses* guesses);
  // Those of `unknown` that the directory knows and no guess has confirmed.
  std::vector<uint32_t> take_answers(const std::vector<uint32_t>& unknown, wire::Status looked_up,
                                     const Guesses& guesses, std::vector<ObjectLocation>* where);
  // PINs at one holder after the other.
  Attempt pin(std::vector<uint32_t> pending, std::vector<ObjectLocation>* where, ReplicaChoice* replicas);
  std::vector<uint32_t> not_ok(const std::vector<uint32_t>& entries) const;
  TransportBatch pin_batch() const;

  const uint32_t pin_ms_;
};

}  // namespace kvstore
