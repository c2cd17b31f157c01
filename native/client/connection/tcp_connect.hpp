// A TCP connection to whichever address of a host answers first ("happy eyeballs", RFC 8305). Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/host_resolver.hpp"
#include "client/connection/client_socket.hpp"
#include "protocol/net_status.hpp"

namespace kvstore {

// Looks the host up and connects to one of its addresses.
NetStatus connect_tcp(const std::string& host, uint16_t port, const Deadline& deadline, ClientSocket* out);

// Tries the addresses in their order, each as soon as the one before has failed or has not answered for a moment, until one is
// connected: *out and *winner, its index.
NetStatus connect_any(const std::vector<SocketAddress>& addresses, const Deadline& deadline,
                      ClientSocket* out, size_t* winner);

}  // namespace kvstore
