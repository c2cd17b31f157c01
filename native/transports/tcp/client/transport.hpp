// The data port over TCP: what every segment offers.
#pragma once

#include "client/transport.hpp"

namespace kvstore {

// Options: tcp.
TransportType tcp_transport();

}  // namespace kvstore
