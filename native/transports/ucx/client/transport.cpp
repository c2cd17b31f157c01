#include "transports/ucx/client/transport.hpp"

#include "client/connection/data_channel.hpp"
#include "transports/ucx/client/get.hpp"
#include "transports/ucx/client/put_sender.hpp"
#include "transports/ucx/client/session.hpp"
#include "transports/ucx/client/shared.hpp"
#include "transports/ucx/core/mode.hpp"

namespace kvstore {
namespace {

using wire::Status;

// One LOCATE holds at most this much of the segment's memory against reuse.
constexpr RunLimits kLocateLimits{uint64_t{64} << 20, kRunEntriesMax};

class UcxTransport : public Transport {
 public:
  UcxTransport(const SegmentRecord& segment, UcxShared& shared)
      : shared_(shared),
        pool_id_(segment.pool_id),
        channel_({segment.host, segment.tcp_port, ""}, segment.pool_id, shared.context, "tcp") {}

  const char* name() const override { return kUcxTransportName; }
  bool same_host() const override { return false; }
  NetStatus submit(TransportBatch& batch, const Deadline& deadline) override;
  // Whether the segment offers RDMA, and a first read of its pool succeeds.
  NetStatus connect(const Deadline& deadline);

 private:
  NetStatus probe(FrameConnection& connection, const Deadline& deadline);
  NetStatus get(TransportBatch& batch, const Deadline& deadline);
  NetStatus get_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs, TransportBatch& batch,
                       const Deadline& deadline);
  NetStatus put(TransportBatch& batch, const Deadline& deadline);

  UcxShared& shared_;
  const PeerId pool_id_;
  DataChannel channel_;
};

NetStatus UcxTransport::connect(const Deadline& deadline) {
  ConnectionPool::Lease lease;
  NetStatus status = channel_.pool().acquire(deadline, &lease);
  if (status != NetStatus::kOk) return status;
  // Half of the time is left for TCP.
  status = probe(*lease, deadline.within_ms(shared_.context.connect_timeout_ms));
  if (status == NetStatus::kOk) {
    lease.keep();
    return NetStatus::kOk;
  }
  if (shared_.socket_allowed) shared_.fallbacks.add();
  return NetStatus::kUnreachable;
}

NetStatus UcxTransport::probe(FrameConnection& connection, const Deadline& deadline) {
  UcxClientSession* session = nullptr;
  const NetStatus status = UcxClientSession::of(connection, shared_, pool_id_, deadline, &session);
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
  UcxPutSender sender(batch, shared_, pool_id_);
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
  NetStatus status = UcxClientSession::of(connection, shared_, pool_id_, deadline, &session);
  if (status == NetStatus::kOk) {
    UcxGet get(*session, batch, shared_, deadline);
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
  if (status == NetStatus::kUnreachable && shared_.socket_allowed) {
    shared_.fallbacks.add();
    return channel_.get_stripe(connection, runs, batch, deadline);
  }
  if (status == NetStatus::kTimeout)
    for (const EntryRun& run : runs)
      for (const uint32_t entry : run.entries(batch.keys->shard_count))
        if (batch.status(entry) == Status::kUnavailable) batch.set_status(entry, Status::kTimeout);
  return status;
}

class UcxFactory : public TransportFactory {
 public:
  UcxFactory(TransportContext& context, std::shared_ptr<UcxContext> ucx, bool required, bool socket_allowed)
      : shared_(context, std::move(ucx), socket_allowed), required_(required) {}

  std::unique_ptr<Transport> open(const SegmentRecord& segment, const Deadline& deadline,
                                  NetStatus* why) override {
    *why = NetStatus::kUnreachable;
    if (segment.host.empty() || segment.tcp_port == 0) return nullptr;
    auto transport = std::make_unique<UcxTransport>(segment, shared_);
    *why = transport->connect(deadline);
    if (*why != NetStatus::kOk) return nullptr;
    return transport;
  }
  bool required() const override { return required_; }
  // Pinning much memory takes long: the sooner it begins, the fewer pages are bounced.
  void memory_registered(const std::shared_ptr<const RegisteredRange>& range) override {
    shared_.memory_of(range);
  }

 private:
  UcxShared shared_;
  const bool required_;
};

std::unique_ptr<TransportFactory> make_ucx(TransportContext& context, const DeclaredOptions& options,
                                           std::string* refusal) {
  const RdmaMode mode = rdma_mode(options.text("rdma"));
  if (mode == RdmaMode::kOff) return nullptr;
  const bool required = mode == RdmaMode::kRequired;
  try {
    return std::make_unique<UcxFactory>(context, UcxContext::open(options.text("rdma_library")), required,
                                        !required && options.flag("tcp"));
  } catch (const UcxError& e) {
    if (required) throw UcxError(std::string("rdma: is required, but ") + e.what());
    context.counters.named(UcxShared::kRefused).add();
    *refusal = e.what();
    return nullptr;
  }
}

}  // namespace

TransportType ucx_transport() {
  return {kUcxTransportName,
          20,
          TransportType::Reach::kAnyHost,
          {{"rdma", "off", "'off', 'auto' (where it works) or 'required' (no pages over TCP)"},
           {"rdma_library", "", "path of libucp.so.0; empty: the system's"}},
          UcxShared::counters(),
          make_ucx};
}

}  // namespace kvstore
