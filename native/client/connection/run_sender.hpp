// How the bytes of a put's run get to the segment: after their request, unless a transport has a way of its
// own.
#pragma once

#include <cstdint>
#include <vector>

#include "client/connection/frame_connection.hpp"
#include "client/transport.hpp"
#include "protocol/data_codec.hpp"
#include "protocol/entry_blocks.hpp"

namespace kvstore {

// One object serves all stripes of a put: its methods are called concurrently.
class RunSender {
 public:
  virtual ~RunSender() = default;
  // Before the first run of a stripe, when no reply is outstanding.
  virtual NetStatus prepare(FrameConnection& connection, const Deadline& deadline) = 0;
  // Sends one request for the run; its reply is read by the stripe.
  virtual NetStatus send(FrameConnection& connection, const EntryRun& run,
                         const data_codec::PutFields& fields, const Deadline& deadline, wire::Op* op,
                         uint32_t* request_id) = 0;
};

// PUT: the bytes follow the request, each step of at most kStepBytes hashed just before it is sent, the
// digests after them.
class SocketRunSender : public RunSender {
 public:
  // `moved` counts the bytes sent.
  SocketRunSender(const TransportBatch& batch, Count& moved) : batch_(batch), moved_(moved) {}
  NetStatus prepare(FrameConnection&, const Deadline&) override { return NetStatus::kOk; }
  NetStatus send(FrameConnection& connection, const EntryRun& run, const data_codec::PutFields& fields,
                 const Deadline& deadline, wire::Op* op, uint32_t* request_id) override;

 private:
  const TransportBatch& batch_;
  Count& moved_;
};

// Lengths of the run's entries, in wire order.
std::vector<uint32_t> entry_lengths(const std::vector<uint32_t>& entries, const Pieces& memory);

constexpr size_t kRunEntriesMax = 4096;

}  // namespace kvstore
