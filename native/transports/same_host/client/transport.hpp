// A segment on this host: gets are copied out of its pool, which is mapped read-only; puts are copied by the segment out of
// registered memory, or sent over its unix socket.
#pragma once

#include "client/transport.hpp"

namespace kvstore {

// Options: same_host, put_digests. Counters: put_pulled_bytes.
TransportType same_host_transport();

}  // namespace kvstore
