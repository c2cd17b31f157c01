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
             const std::vector<uint32_t>& entries, const Pieces& memory, uint32_t replicas,
             const PeerSet& avoided, const Deadline& deadline, Placement* placement) {
  if (const Status status = cluster.refresh_map(deadline); status != Status::kOk) return status;
  std::vector<uint32_t> lengths(entries.size()), placed;
  for (size_t i = 0; i < entries.size(); ++i)
    lengths[i] = static_cast<uint32_t>(memory.entry_bytes(entries[i]));
  Status status = cluster.directory().place(
      ns, fingerprints_of(fingerprints, entries), lengths, near_segment(cluster.peers()),
      cluster.peers().unusable(wire::kAvoidedMax), replicas, deadline, &placed);
  if (status == Status::kOk) status = cluster.refresh_map(deadline);
  if (status != Status::kOk) return status;

  PeerFinder finder(cluster, deadline);
  Substitutes substitutes(cluster.peers(), avoided);
  placement->copies.resize(replicas);
  const auto send = [&](size_t copy, uint32_t segment, std::shared_ptr<SegmentPeer> peer, uint32_t entry) {
    SegmentGroup& group = placement->copies[copy][segment];
    group.peer = std::move(peer);
    group.entries.push_back(entry);
  };
  // Where the copies of one entry go on from `copy`: those of the directory's segments that take them. How many there were.
  const auto send_to_named = [&](size_t i, size_t copy) {
    size_t named = 0;
    for (size_t at = i; at < placed.size(); at += entries.size()) {
      const uint32_t segment = placed[at];
      if (segment == wire::kNoSegment || segment == wire::kAlreadyThere) continue;
      std::shared_ptr<SegmentPeer> peer = finder.find(segment);
      if (peer == nullptr || !peer->takes_puts() || avoided.count(peer) > 0) continue;
      send(copy + named++, segment, std::move(peer), entries[i]);
    }
    return named;
  };
  // Those that the directory names no segment for count at the master.
  const auto named_by_directory = [&](size_t i) {
    size_t named = 0;
    for (size_t at = i; at < placed.size(); at += entries.size())
      named += placed[at] != wire::kNoSegment && placed[at] != wire::kAlreadyThere;
    return named;
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    switch (placed[i]) {
      case wire::kAlreadyThere:
        placement->answered.emplace_back(entries[i], Status::kExists);
        placement->copies_short += named_by_directory(i) - send_to_named(i, 1);
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
    const size_t sent = send_to_named(i, 0);
    if (sent > 0) {
      placement->copies_short += replicas - sent;
      continue;
    }
    const RoomChoice::Candidate* const other = substitutes.choose(lengths[i]);
    if (other == nullptr) continue;
    send(0, other->segment, other->peer, entries[i]);
    placement->copies_short += replicas - 1;
  }
  return Status::kOk;
}

}  // namespace kvstore
