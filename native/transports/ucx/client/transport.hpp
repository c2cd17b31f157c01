// A segment within reach of RDMA: gets are read out of its pool, puts are read by the segment out of this process's memory. Everything
// else, also what says where the bytes are, goes over the framed data port.
#pragma once

#include "client/transport.hpp"

namespace kvstore {

// Options: rdma, rdma_library. Counters: those of UcxShared.
TransportType ucx_transport();

}  // namespace kvstore
