// The data port over connections to one address (TCP or unix): framed requests for whole batches, striped over connections.
//
// Thread-safe. What the transports over sockets share; a transport decides which batches go this way.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "client/connection/connection_pool.hpp"
#include "client/transport.hpp"
#include "protocol/data_codec.hpp"
#include "protocol/entry_blocks.hpp"

namespace kvstore {

// Sends the bytes of a run, one way or another. One object serves all stripes of a put: its methods are called concurrently.
class RunSender {
 public:
  virtual ~RunSender() = default;
  // Before the first run of a stripe, when no reply is outstanding.
  virtual NetStatus prepare(FrameConnection& connection, const Deadline& deadline) = 0;
  // Sends one request for the run; its reply is read by the channel.
  virtual NetStatus send(FrameConnection& connection, const EntryRun& run,
                         const data_codec::PutFields& fields, const Deadline& deadline, wire::Op* op,
                         uint32_t* request_id) = 0;
};

// PUT: the bytes follow the request, each step of at most kStepBytes hashed just before it is sent, the digests after them.
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

class DataChannel {
 public:
  // `transport`: whose bytes the pages count as.
  DataChannel(PeerAddress address, const PeerId& pool_id, TransportContext& context, const char* transport);

  // PIN, REMOVE and SUSPECT: a status an entry.
  NetStatus submit_statuses(TransportBatch& batch, const Deadline& deadline);
  NetStatus get(TransportBatch& batch, const Deadline& deadline);
  // `limits`: of a run of this sender.
  NetStatus put(TransportBatch& batch, const Deadline& deadline, RunSender& sender, const RunLimits& limits);
  NetStatus put(TransportBatch& batch, const Deadline& deadline);

  // Where the objects of a run lie. The segment holds them until unpin(), or a little past the deadline.
  struct Located {
    std::vector<uint32_t> entries;
    std::vector<data_codec::Location>
        locations;  // one an entry; none when the segment refused, which is their status then
    uint32_t locate_id = 0;
  };
  NetStatus locate(FrameConnection& connection, const EntryRun& run, TransportBatch& batch,
                   const data_codec::PoolGeometry& geometry, const Deadline& deadline, Located* out);
  NetStatus unpin(FrameConnection& connection, const Located& located, const Deadline& deadline);

  // Leases connections, cuts the batch to their number and runs `stripe` on all of them at once. Until a stripe says otherwise
  // its entries are UNAVAILABLE.
  using Stripe = std::function<NetStatus(FrameConnection&, const std::vector<EntryRun>&)>;
  NetStatus run_stripes(TransportBatch& batch, const RunLimits& limits, const Deadline& deadline,
                        const Stripe& stripe);
  // Gets the runs over the socket.
  NetStatus get_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs, TransportBatch& batch,
                       const Deadline& deadline);

  ConnectionPool& pool() { return pool_; }
  Count& bytes_get() { return bytes_get_; }
  Count& bytes_put() { return bytes_put_; }

 private:
  NetStatus receive_run(FrameConnection& connection, const EntryRun& run, uint32_t request_id,
                        TransportBatch& batch, const Deadline& deadline, std::vector<uint8_t>& staging);
  NetStatus put_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs, TransportBatch& batch,
                       const Deadline& deadline, RunSender& sender);

  TransportContext& context_;
  Count& bytes_get_;
  Count& bytes_put_;
  ConnectionPool pool_;
};

// Commit timeout of a put: what is left, less what the reply needs to come back in time.
uint32_t commit_timeout_ms(const Deadline& deadline);

// Lengths of the run's entries, in wire order.
std::vector<uint32_t> entry_lengths(const std::vector<uint32_t>& entries, const Pieces& memory);

// Below this a second connection costs more than it brings.
constexpr uint64_t kStripeBytesMin = 512u << 10;
constexpr size_t kRunEntriesMax = 4096;
// Puts in flight on a connection. More would only lengthen what a failure leaves unknown; with runs of at most kRunEntriesMax
// entries their replies always fit the socket's buffer, so neither side can block the other.
constexpr size_t kPutWindow = 4;
// Concurrent calls that may each have their connections to a peer.
constexpr size_t kConcurrentCallsMax = 4;

}  // namespace kvstore
