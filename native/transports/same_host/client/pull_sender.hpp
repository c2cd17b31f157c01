// Puts by PULL: the segment copies the pieces out of memory that it was handed as a descriptor.
#pragma once

#include <memory>

#include "client/connection/data_channel.hpp"
#include "client/registered_memory.hpp"

namespace kvstore {

// Pieces a request describes at most: 12 bytes each, far under the body cap, and enough for any run worth overlapping.
constexpr size_t kPullRunPieces = 65536;

// Has the peer forget those of the connection's registrations that are no longer registered here.
NetStatus unregister_stale(FrameConnection& connection, const TransportContext& context,
                           const Deadline& deadline);

// Serves the stripes of one put concurrently. Runs that don't lie wholly in the range go over the socket.
class PullSender : public RunSender {
 public:
  PullSender(const TransportBatch& batch, std::shared_ptr<const RegisteredRange> range,
             TransportContext& context);

  // Registers the range with the connection, and drops what is no longer registered here.
  NetStatus prepare(FrameConnection& connection, const Deadline& deadline) override;
  NetStatus send(FrameConnection& connection, const EntryRun& run, const data_codec::PutFields& fields,
                 const Deadline& deadline, wire::Op* op, uint32_t* request_id) override;

  // The range that holds the batch's first piece, or null: then there is nothing to pull from.
  static std::shared_ptr<const RegisteredRange> range_of(const TransportBatch& batch,
                                                         const TransportContext& context);
  // How many entries of the batch a request may describe.
  static size_t run_entries_max(const TransportBatch& batch);

 private:
  const TransportBatch& batch_;
  const std::shared_ptr<const RegisteredRange> range_;
  TransportContext& context_;
  SocketRunSender socket_sender_;
};

}  // namespace kvstore
