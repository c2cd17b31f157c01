#include "client/calls/room_choice.hpp"

#include <algorithm>

namespace kvstore {

std::vector<RoomChoice::Candidate> RoomChoice::candidates(const SegmentPeers& peers, const PeerSet& avoided) {
  std::vector<Candidate> all;
  for (const auto& [segment, peer] : peers.all())
    if (peer->takes_puts() && avoided.count(peer) == 0) all.push_back({segment, peer->room_bytes(), peer});
  return all;
}

RoomChoice::Candidate* RoomChoice::draw() {
  uint64_t total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.room_bytes;
  if (total == 0)  // all are full, and evict: none is better than another
    return &candidates_[std::uniform_int_distribution<size_t>(0, candidates_.size() - 1)(random_)];
  uint64_t at = std::uniform_int_distribution<uint64_t>(0, total - 1)(random_);
  for (Candidate& candidate : candidates_) {
    if (at < candidate.room_bytes) return &candidate;
    at -= candidate.room_bytes;
  }
  return &candidates_.back();
}

const RoomChoice::Candidate* RoomChoice::choose(uint64_t object_bytes) {
  if (candidates_.empty()) return nullptr;
  if (current_ == nullptr || run_bytes_ >= kRunBytes) {
    Candidate* const first = draw();
    Candidate* const second = draw();
    current_ = second->room_bytes > first->room_bytes ? second : first;
    run_bytes_ = 0;
  }
  run_bytes_ += object_bytes;
  current_->room_bytes -= std::min(object_bytes, current_->room_bytes);
  return current_;
}

}  // namespace kvstore
