// The data port over connections to one address (TCP or unix): framed requests for whole batches, striped over connections.
//
// Thread-safe. What the transports over sockets share; a transport decides which batches go this way.
#pragma once

#include <memory>
#include <vector>

#include "kvstore/connection_pool.hpp"
#include "kvstore/data_codec.hpp"
#include "kvstore/entry_blocks.hpp"
#include "kvstore/transport.hpp"

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
  SocketRunSender(const TransportBatch& batch, ClientCounters& counters, Counter moved)
      : batch_(batch), counters_(counters), moved_(moved) {}
  NetStatus prepare(FrameConnection&, const Deadline&) override { return NetStatus::kOk; }
  NetStatus send(FrameConnection& connection, const EntryRun& run, const data_codec::PutFields& fields,
                 const Deadline& deadline, wire::Op* op, uint32_t* request_id) override;

 private:
  const TransportBatch& batch_;
  ClientCounters& counters_;
  const Counter moved_;
};

class DataChannel {
 public:
  DataChannel(PeerAddress address, const PeerId& pool_id, TransportContext& context, Counter bytes_get,
              Counter bytes_put);

  // PIN, REMOVE and SUSPECT: a status an entry.
  NetStatus submit_statuses(TransportBatch& batch, const Deadline& deadline);
  NetStatus get(TransportBatch& batch, const Deadline& deadline);
  // `run_entries_max`: how many entries a run of this sender may hold.
  NetStatus put(TransportBatch& batch, const Deadline& deadline, RunSender& sender, size_t run_entries_max);
  NetStatus put(TransportBatch& batch, const Deadline& deadline);

  ConnectionPool& pool() { return pool_; }

 private:
  NetStatus get_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs, TransportBatch& batch,
                       const Deadline& deadline);
  NetStatus receive_run(FrameConnection& connection, const EntryRun& run, uint32_t request_id,
                        TransportBatch& batch, const Deadline& deadline, std::vector<uint8_t>& staging);
  NetStatus put_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs, TransportBatch& batch,
                       const Deadline& deadline, RunSender& sender);
  // Leases connections, cuts the batch to their number and runs `stripe` on all of them at once.
  template <typename Stripe>
  NetStatus run_stripes(TransportBatch& batch, const RunLimits& limits, const Deadline& deadline,
                        Stripe&& stripe);

  TransportContext& context_;
  const Counter bytes_get_;
  const Counter bytes_put_;
  ConnectionPool pool_;
};

// Commit timeout of a put: what is left, less what the reply needs to come back in time.
uint32_t commit_timeout_ms(const Deadline& deadline);

// Lengths of the run's entries, in wire order.
std::vector<uint32_t> entry_lengths(const std::vector<uint32_t>& entries, const Pieces& memory);

// Below this a second connection costs more than it brings.
constexpr uint64_t kStripeBytesMin = 512u << 10;
constexpr size_t kRunEntriesMax = 4096;
// Concurrent calls that may each have their connections to a peer.
constexpr size_t kConcurrentCallsMax = 4;

}  // namespace kvstore
