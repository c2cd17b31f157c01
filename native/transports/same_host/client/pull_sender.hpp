// Puts by PULL: the segment copies the pieces out of memory that it was handed as a descriptor.
#pragma once

#include <memory>

#include "client/connection/run_sender.hpp"
#include "client/registered_memory.hpp"

namespace kvstore {

// Serves the stripes of one put concurrently. Runs that don't lie wholly in the range go over the socket.
class PullSender : public RunSender {
 public:
  // `with_digests`: the segment compares what it fetched with what was here. `moved` counts the bytes, `pulled` those of them that the segment fetched by itself.
  PullSender(const TransportBatch& batch, std::shared_ptr<const RegisteredRange> range,
             const TransportContext& context, bool with_digests, Count& moved, Count& pulled);

  // Registers the range with the connection, and drops what is no longer registered here.
  NetStatus prepare(FrameConnection& connection, const Deadline& deadline) override;
  NetStatus send(FrameConnection& connection, const EntryRun& run, const data_codec::PutFields& fields,
                 const Deadline& deadline, wire::Op* op, uint32_t* request_id) override;

  // The range that holds the batch's first piece, or null: then there is nothing to pull from.
  static std::shared_ptr<const RegisteredRange> range_of(const TransportBatch& batch,
                                                         const TransportContext& context);

 private:
  void write_digests(wire::Writer& body, const std::vector<uint32_t>& entries) const;

  const TransportBatch& batch_;
  const std::shared_ptr<const RegisteredRange> range_;
  const TransportContext& context_;
  const bool with_digests_;
  Count& moved_;
  Count& pulled_;
  SocketRunSender socket_sender_;
};

}  // namespace kvstore
