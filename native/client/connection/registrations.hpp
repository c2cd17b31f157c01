// The client's registered memory, as the connections know it over which a segment pulls out of it.
#pragma once

#include <memory>
#include <optional>

#include "client/connection/frame_connection.hpp"
#include "client/transport.hpp"

namespace kvstore {

// Pieces a PULL describes at most: 12 bytes each, far under the body cap, and enough for any run worth overlapping.
constexpr size_t kPullRunPieces = 65536;

// How many entries of the batch a PULL may describe.
size_t pull_run_entries_max(const TransportBatch& batch);

// The registered range, or SharedBuffer of the process, that holds `address`; or null.
std::shared_ptr<const RegisteredRange> registered_range_of(const void* address,
                                                           const TransportContext& context);

// Has the peer forget those of the connection's registrations that are no longer registered here.
NetStatus unregister_stale(FrameConnection& connection, const TransportContext& context,
                           const Deadline& deadline);

// Has the peer map the range's memory for this connection, unless it has; nothing where the connection has kRegistrationsMax
// already or the peer refuses, and registered_as() says so.
NetStatus register_range(FrameConnection& connection, const RegisteredRange& range,
                         const TransportContext& context, const Deadline& deadline);

// The peer's number for it.
std::optional<uint32_t> registered_as(const FrameConnection& connection, const RegisteredRange& range);

// What a connection may have of them: a segment refuses more (docs/protocol.md section 1).
constexpr size_t kRegistrationsMax = 256;

}  // namespace kvstore
