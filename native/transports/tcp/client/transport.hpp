// The data port over TCP: what every segment offers. Thread-safe.
#pragma once

#include "client/connection/data_channel.hpp"
#include "client/transport.hpp"

namespace kvstore {

class TcpTransport : public Transport {
 public:
  // Null when the segment can't be reached, or is not the pool that the map promises.
  static std::unique_ptr<Transport> open(const SegmentRecord& segment, TransportContext& context,
                                         const Deadline& deadline, NetStatus* why);

  TcpTransport(const SegmentRecord& segment, TransportContext& context);
  const char* name() const override { return "tcp"; }
  bool same_host() const override { return false; }
  NetStatus submit(TransportBatch& batch, const Deadline& deadline) override;

 private:
  DataChannel channel_;
};

}  // namespace kvstore
