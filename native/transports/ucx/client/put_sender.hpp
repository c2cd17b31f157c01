// Puts by PULL over RDMA: the segment reads the pieces out of this process's memory, which it can't change, into slots of its own.
#pragma once

#include <memory>

#include "client/connection/run_sender.hpp"
#include "transports/ucx/client/session.hpp"

namespace kvstore {

// Serves the stripes of one put concurrently. Pages that lie in one registered range are read where they are; others are copied into
// the session's bounce memory first. What fits neither goes over the socket.
class UcxPutSender : public RunSender {
 public:
  UcxPutSender(const TransportBatch& batch, UcxShared& shared, const PeerId& pool_id);

  // How much of the batch a request may describe.
  RunLimits run_limits() const;

  // Sees to the connection's session, and to what the segment has to know of our memory.
  NetStatus prepare(FrameConnection& connection, const Deadline& deadline) override;
  NetStatus send(FrameConnection& connection, const EntryRun& run, const data_codec::PutFields& fields,
                 const Deadline& deadline, wire::Op* op, uint32_t* request_id) override;

 private:
  struct Described;
  bool describe_in_place(FrameConnection& connection, const std::vector<uint32_t>& entries,
                         Described* out) const;
  bool describe_bounced(UcxClientSession& session, const EntryRun& run, const std::vector<uint32_t>& entries,
                        Described* out) const;

  const TransportBatch& batch_;
  UcxShared& shared_;
  const PeerId pool_id_;
  std::shared_ptr<const RegisteredRange> range_;
  std::shared_ptr<const UcxMemory> memory_;  // of the range; null: pages are bounced
  SocketRunSender socket_sender_;
};

}  // namespace kvstore
