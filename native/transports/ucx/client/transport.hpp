// A segment within reach of RDMA: gets are read out of its pool, puts are read by the segment out of this process's memory. Everything
// else, also what says where the bytes are, goes over the framed data port. Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "client/connection/data_channel.hpp"
#include "client/transport.hpp"
#include "transports/ucx/client/session.hpp"

namespace kvstore {

class UcxTransport : public Transport {
 public:
  // Null unless RDMA is on, the segment offers it, and a first read of its pool succeeds.
  static std::unique_ptr<Transport> open(const SegmentRecord& segment, TransportContext& context,
                                         const Deadline& deadline, NetStatus* why);

  UcxTransport(const SegmentRecord& segment, TransportContext& context);
  const char* name() const override { return "rdma"; }
  bool same_host() const override { return false; }
  NetStatus submit(TransportBatch& batch, const Deadline& deadline) override;

 private:
  NetStatus probe(FrameConnection& connection, const Deadline& deadline);
  NetStatus get(TransportBatch& batch, const Deadline& deadline);
  NetStatus get_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs, TransportBatch& batch,
                       const Deadline& deadline);
  NetStatus put(TransportBatch& batch, const Deadline& deadline);

  TransportContext& context_;
  const PeerId pool_id_;
  DataChannel channel_;
};

}  // namespace kvstore
