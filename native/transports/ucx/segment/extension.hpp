// RDMA at the data port: RDMA_CONNECT, RDMA_REGISTER, and PULL out of memory that was registered so.
#pragma once

#include "segment/data_port/extension.hpp"

namespace kvstore {

// Options: rdma, rdma_library, rdma_sessions_max.
DataPortExtensionType ucx_extension();

}  // namespace kvstore
