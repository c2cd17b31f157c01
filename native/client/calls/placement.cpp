#include "client/calls/placement.hpp"

#include <optional>
#include <random>

namespace kvstore {
namespace {

using wire::Status;

uint32_t near_segment(const SegmentPeers& peers) {
  for (const auto& [segment, peer] : peers.all())
    if (peer->same_host() && peer->takes_puts()) return segment;
  return wire::kNoSegment;
}

// Segments for what the directory would send to one that this client knows takes no puts. The directory
// learns of every object from the segment that has it, so any other one will do.
class Substitutes {
 public:
  Substitutes(const SegmentPeers& peers, const PeerSet& avoided) : peers_(peers), avoided_(avoided) {}
  const RoomChoice::Candidate* choose(uint64_t object_bytes) {
    if (!choice_) choice_.emplace(RoomChoice::candidates(peers_, avoided_), std::random_device{}());
    return choice_->choose(object_bytes);
  }

 private:
  const SegmentPeers& peers_;
  const PeerSet& avoided_;
  std::optional<RoomChoice> choice_;  // most puts need none
};

}  // namespace

Status place(Cluster& cluster, const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
             const std::vector<uint32_t>& entries, const Pieces& memory, const PeerSet& avoided,
             const Deadline& deadline, Placement* placement) {
  if (const Status status = cluster.refresh_map(deadline); status != Status::kOk) return status;
  std::vector<uint32_t> lengths(entries.size()), placed;
  for (size_t i = 0; i < entries.size(); ++i)
    lengths[i] = static_cast<uint32_t>(memory.entry_bytes(entries[i]));
  Status status = cluster.directory().place(ns, fingerprints_of(fingerprints, entries), lengths,
                                            near_segment(cluster.peers()),
                                            cluster.peers().unusable(wire::kAvoidedMax), deadline, &placed);
  if (status == Status::kOk) status = cluster.refresh_map(deadline);
  if (status != Status::kOk) return status;

  PeerFinder finder(cluster, deadline);
  Substitutes substitutes(cluster.peers(), avoided);
  for (size_t i = 0; i < entries.size(); ++i) {
    switch (placed[i]) {
      case wire::kAlreadyThere:
        placement->answered.emplace_back(entries[i], Status::kExists);
        continue;
      case wire::kOtherLength:
        placement->answered.emplace_back(entries[i], Status::kConflict);
        continue;
      case wire::kNoSegment:
        placement->answered.emplace_back(entries[i], Status::kNoSpace);
        continue;
      default:
        break;
    }
    uint32_t segment = placed[i];
    std::shared_ptr<SegmentPeer> peer = finder.find(segment);
    if (peer == nullptr || !peer->takes_puts() || avoided.count(peer) > 0) {
      const RoomChoice::Candidate* const other = substitutes.choose(lengths[i]);
      if (other == nullptr) continue;
      segment = other->segment;
      peer = other->peer;
    }
    SegmentGroup& group = placement->groups[segment];
    group.peer = std::move(peer);
    group.entries.push_back(entries[i]);
  }
  return Status::kOk;
}

}  // namespace kvstore
