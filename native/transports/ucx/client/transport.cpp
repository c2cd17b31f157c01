#include "transports/ucx/client/transport.hpp"

#include "transports/ucx/client/get.hpp"
#include "transports/ucx/client/put_sender.hpp"

namespace kvstore {
namespace {

using wire::Status;

// One LOCATE holds at most this much of the segment's memory against reuse.
constexpr RunLimits kLocateLimits{uint64_t{64} << 20, kRunEntriesMax};

}  // namespace

UcxTransport::UcxTransport(const SegmentRecord& segment, TransportContext& context)
    : context_(context),
      pool_id_(segment.pool_id),
      channel_({segment.host, segment.tcp_port, ""}, segment.pool_id, context, Counter::kTcpBytesGet,
               Counter::kTcpBytesPut) {}

std::unique_ptr<Transport> UcxTransport::open(const SegmentRecord& segment, TransportContext& context,
                                              const Deadline& deadline, NetStatus* why) {
  *why = NetStatus::kUnreachable;
  if (context.rdma == nullptr || segment.host.empty() || segment.tcp_port == 0) return nullptr;
  auto transport = std::make_unique<UcxTransport>(segment, context);
  ConnectionPool::Lease lease;
  *why = transport->channel_.pool().acquire(deadline, &lease);
  if (*why != NetStatus::kOk) return nullptr;
  // Half of the time is left for TCP.
  const NetStatus status = transport->probe(*lease, deadline.within_ms(context.connect_timeout_ms));
  if (status == NetStatus::kOk) {
    lease.keep();
    return transport;
  }
  *why = NetStatus::kUnreachable;
  if (context.tcp_enabled) context.counters.add(Counter::kRdmaFallbacks);
  return nullptr;
}

NetStatus UcxTransport::probe(FrameConnection& connection, const Deadline& deadline) {
  UcxClientSession* session = nullptr;
  const NetStatus status = UcxClientSession::of(connection, context_, pool_id_, deadline, &session);
  if (status != NetStatus::kOk) return status;
  std::vector<uint64_t> generations;
  return session->read_generations({0}, deadline, &generations);
}

NetStatus UcxTransport::submit(TransportBatch& batch, const Deadline& deadline) {
  switch (batch.kind) {
    case BatchKind::kGet:
      return get(batch, deadline);
    case BatchKind::kPut:
      return put(batch, deadline);
    default:
      return channel_.submit_statuses(batch, deadline);
  }
}

NetStatus UcxTransport::put(TransportBatch& batch, const Deadline& deadline) {
  UcxPutSender sender(batch, context_, pool_id_);
  return channel_.put(batch, deadline, sender, sender.run_limits());
}

NetStatus UcxTransport::get(TransportBatch& batch, const Deadline& deadline) {
  return channel_.run_stripes(batch, kLocateLimits, deadline,
                              [&](FrameConnection& connection, const std::vector<EntryRun>& runs) {
                                return get_stripe(connection, runs, batch, deadline);
                              });
}

NetStatus UcxTransport::get_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs,
                                   TransportBatch& batch, const Deadline& deadline) {
  UcxClientSession* session = nullptr;
  NetStatus status = UcxClientSession::of(connection, context_, pool_id_, deadline, &session);
  if (status == NetStatus::kOk) {
    UcxGet get(*session, batch, context_, deadline);
    if (get.needs_bounce(runs) && session->bounce() == nullptr) status = NetStatus::kUnreachable;
    for (const EntryRun& run : runs) {
      if (status != NetStatus::kOk) break;
      DataChannel::Located located;
      status = channel_.locate(connection, run, batch, session->geometry(), deadline, &located);
      if (status == NetStatus::kOk && !located.locations.empty()) {
        status = get.fetch(located.entries, located.locations);
        if (status == NetStatus::kOk) status = channel_.unpin(connection, located, deadline);
      }
    }
  }
  if (status == NetStatus::kUnreachable && context_.tcp_enabled) {
    context_.counters.add(Counter::kRdmaFallbacks);
    return channel_.get_stripe(connection, runs, batch, deadline);
  }
  if (status == NetStatus::kTimeout)
    for (const EntryRun& run : runs)
      for (const uint32_t entry : run.entries(batch.keys->shard_count))
        if (batch.status(entry) == Status::kUnavailable) batch.set_status(entry, Status::kTimeout);
  return status;
}

}  // namespace kvstore
