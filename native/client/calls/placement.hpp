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
  SegmentGroups groups;                                     // to be sent
  std::vector<std::pair<uint32_t, wire::Status>> answered;  // need no sending: EXISTS, CONFLICT, NO_SPACE
};

// Asks the directory for a place for each of `entries`, and finds another one for what it would send to an
// avoided segment; those that no segment takes now are in neither part of *placement. Any status but OK is
// that of the request, and *placement stays as it was.
wire::Status place(Cluster& cluster, const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                   const std::vector<uint32_t>& entries, const Pieces& memory, const PeerSet& avoided,
                   const Deadline& deadline, Placement* placement);

}  // namespace kvstore
