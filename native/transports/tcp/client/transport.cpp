#include "transports/tcp/client/transport.hpp"

namespace kvstore {

std::unique_ptr<Transport> TcpTransport::open(const SegmentRecord& segment, TransportContext& context,
                                              const Deadline& deadline, NetStatus* why) {
  *why = NetStatus::kUnreachable;
  if (!context.tcp_enabled || segment.host.empty() || segment.tcp_port == 0) return nullptr;
  auto transport = std::make_unique<TcpTransport>(segment, context);
  ConnectionPool::Lease lease;
  *why = transport->channel_.pool().acquire(deadline, &lease);
  if (*why != NetStatus::kOk) return nullptr;
  lease.keep();
  return transport;
}

TcpTransport::TcpTransport(const SegmentRecord& segment, TransportContext& context)
    : channel_({segment.host, segment.tcp_port, ""}, segment.pool_id, context, Counter::kTcpBytesGet,
               Counter::kTcpBytesPut) {}

NetStatus TcpTransport::submit(TransportBatch& batch, const Deadline& deadline) {
  switch (batch.kind) {
    case BatchKind::kGet:
      return channel_.get(batch, deadline);
    case BatchKind::kPut:
      return channel_.put(batch, deadline);
    default:
      return channel_.submit_statuses(batch, deadline);
  }
}

}  // namespace kvstore
