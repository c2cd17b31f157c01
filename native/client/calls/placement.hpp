// Where the objects of a put go: what the directory answers, put right by what this client has just learned
// about segments.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "client/calls/room_choice.hpp"
#include "client/cluster.hpp"
#include "client/pieces.hpp"
#include "protocol/keys.hpp"

namespace kvstore {

struct Placement {
  // To be sent: [0] has the only or first copies, [r] further ones. What is there already, in too few copies, is in further ones alone.
  std::vector<SegmentGroups> copies;
  std::vector<std::pair<uint32_t, wire::Status>> answered;  // without sending: EXISTS, CONFLICT, NO_SPACE
  uint64_t copies_short = 0;                                // wanted, and nobody takes them
};

// Asks the directory for a place for each of `entries`, and finds another one for what it would send to an
// avoided segment; those that no segment takes now are in neither part of *placement. Further copies, of `replicas`, that can't
// go where the directory would have them are left out. Any status but OK is that of the request, and *placement stays as it was.
wire::Status place(Cluster& cluster, const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                   const std::vector<uint32_t>& entries, const Pieces& memory, uint32_t replicas,
                   const PeerSet& avoided, const Deadline& deadline, Placement* placement);

}  // namespace kvstore
