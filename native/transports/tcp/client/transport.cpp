#include "transports/tcp/client/transport.hpp"

#include "client/connection/data_channel.hpp"

namespace kvstore {
namespace {

class TcpTransport : public Transport {
 public:
  TcpTransport(const SegmentRecord& segment, TransportContext& context)
      : channel_({segment.host, segment.tcp_port, ""}, segment.pool_id, context, "tcp") {}

  const char* name() const override { return "tcp"; }
  bool same_host() const override { return false; }
  NetStatus submit(TransportBatch& batch, const Deadline& deadline) override {
    switch (batch.kind) {
      case BatchKind::kGet:
        return channel_.get(batch, deadline);
      case BatchKind::kPut:
        return channel_.put(batch, deadline);
      default:
        return channel_.submit_statuses(batch, deadline);
    }
  }
  // Connects, unless the segment can't be reached or is not the pool that the map promises.
  NetStatus connect(const Deadline& deadline) {
    ConnectionPool::Lease lease;
    const NetStatus status = channel_.pool().acquire(deadline, &lease);
    if (status == NetStatus::kOk) lease.keep();
    return status;
  }

 private:
  DataChannel channel_;
};

class TcpFactory : public TransportFactory {
 public:
  explicit TcpFactory(TransportContext& context) : context_(context) {}

  std::unique_ptr<Transport> open(const SegmentRecord& segment, const Deadline& deadline,
                                  NetStatus* why) override {
    *why = NetStatus::kUnreachable;
    if (segment.host.empty() || segment.tcp_port == 0) return nullptr;
    auto transport = std::make_unique<TcpTransport>(segment, context_);
    *why = transport->connect(deadline);
    if (*why != NetStatus::kOk) return nullptr;
    return transport;
  }

 private:
  TransportContext& context_;
};

std::unique_ptr<TransportFactory> make_tcp(TransportContext& context, const DeclaredOptions& options,
                                           std::string*) {
  if (!options.flag("tcp")) return nullptr;
  return std::make_unique<TcpFactory>(context);
}

}  // namespace

TransportType tcp_transport() {
  return {"tcp", 10,      TransportType::Reach::kAnyHost, {{"tcp", "true", "whether pages may go over TCP"}},
          {},    make_tcp};
}

}  // namespace kvstore
