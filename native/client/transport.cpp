// The transports there are, best first. A new one is its own file and a line here.
#include "transports/same_host/client/transport.hpp"

#include "client/transport.hpp"
#include "transports/tcp/client/transport.hpp"
#include "transports/ucx/client/transport.hpp"

namespace kvstore {
namespace {

using OpenTransport = std::unique_ptr<Transport> (*)(const SegmentRecord&, TransportContext&, const Deadline&,
                                                     NetStatus*);

constexpr OpenTransport kTransports[] = {
    SameHostTransport::open,
    UcxTransport::open,
    TcpTransport::open,
};

}  // namespace

std::unique_ptr<Transport> open_transport(const SegmentRecord& segment, TransportContext& context,
                                          const Deadline& deadline, NetStatus* why) {
  *why = NetStatus::kUnreachable;
  for (const OpenTransport open : kTransports) {
    if (auto transport = open(segment, context, deadline, why)) return transport;
    // Behind all addresses of a segment stands one process: when it hangs on one, it hangs on the others.
    if (*why == NetStatus::kTimeout) return nullptr;
  }
  return nullptr;
}

}  // namespace kvstore
