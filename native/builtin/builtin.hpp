// What comes with the product: the transports that a client chooses from, and what they need of a segment's data port.
#pragma once

#include <vector>

#include "client/transport.hpp"
#include "segment/data_port/extension.hpp"

namespace kvstore {

std::vector<TransportType> builtin_transports();
std::vector<DataPortExtensionType> builtin_extensions();

}  // namespace kvstore
