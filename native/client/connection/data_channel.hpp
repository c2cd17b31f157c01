// The data port over connections to one address (TCP or unix): framed requests for whole batches, striped
// over connections.
//
// Thread-safe. What the transports over sockets share; a transport decides which batches go this way.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "client/connection/connection_pool.hpp"
#include "client/connection/covering_commit.hpp"
#include "client/connection/run_sender.hpp"
#include "client/transport.hpp"
#include "protocol/data_codec.hpp"
#include "protocol/entry_blocks.hpp"

namespace kvstore {

class DataChannel {
 public:
  // `transport`: whose bytes the pages count as.
  DataChannel(PeerAddress address, const PeerId& pool_id, TransportContext& context, const char* transport);

  // PIN, REMOVE, SUSPECT and KEEP: a status an entry.
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

  // Leases connections, cuts the batch to their number and runs `stripe` on all of them at once. Until a
  // stripe says otherwise its entries are UNAVAILABLE.
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
  // A batch, cut to the connections that it goes over.
  struct Stripes {
    std::vector<ConnectionPool::Lease> leases;  // one a stripe
    std::vector<EntryBlock> blocks;             // what the runs refer to
    std::vector<std::vector<EntryRun>> runs;
    std::vector<NetStatus> outcomes;  // one a stripe

    // Keeps the connections of those that went well. The status of one that did not, or OK.
    NetStatus end();
  };
  NetStatus cut(TransportBatch& batch, const RunLimits& limits, const Deadline& deadline, Stripes* out);
  // One COMMIT for all stripes, over the first connection that is still good.
  static void commit(Stripes& stripes, std::vector<CoveringCommit>& commits, const Deadline& deadline);

  // KEEP for what is stored of a put.
  void keep_stored(const TransportBatch& put, const wire::KeepWish& wish, const Deadline& deadline);

  TransportContext& context_;
  Count& bytes_get_;
  Count& bytes_put_;
  ConnectionPool pool_;
};

// Below this a second connection costs more than it brings.
constexpr uint64_t kStripeBytesMin = 512u << 10;
// Concurrent calls that may each have their connections to a peer.
constexpr size_t kConcurrentCallsMax = 4;

}  // namespace kvstore
