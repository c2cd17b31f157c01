// Which segment takes objects that the directory's choice can't: the roomier of two drawn at random, each as
// likely as its share of all the room. Clients that all fail at one segment so don't all go to the same other
// one. No IO.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "client/segment_peers.hpp"

namespace kvstore {

using PeerSet = std::set<std::shared_ptr<SegmentPeer>>;

class RoomChoice {
 public:
  struct Candidate {
    uint32_t segment;
    uint64_t room_bytes;
    std::shared_ptr<SegmentPeer> peer;
  };
  RoomChoice(std::vector<Candidate> candidates, uint32_t seed)
      : candidates_(std::move(candidates)), random_(seed) {}

  // The segments that take puts now, those to be avoided excepted.
  static std::vector<Candidate> candidates(const SegmentPeers& peers, const PeerSet& avoided);

  // Null when there is none. The object counts as stored there for what is chosen next; objects in a row go
  // to one segment until they are kRunBytes, so that a batch doesn't become a request an object.
  const Candidate* choose(uint64_t object_bytes);

 private:
  static constexpr uint64_t kRunBytes = 4u << 20;
  Candidate* draw();

  std::vector<Candidate> candidates_;
  std::minstd_rand random_;
  Candidate* current_ = nullptr;
  uint64_t run_bytes_ = 0;
};

}  // namespace kvstore
