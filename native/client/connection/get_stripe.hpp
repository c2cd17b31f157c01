// Gets runs over one connection: the next request is out while the bytes of the last one come in, and these
// are scattered over the caller's pieces and hashed as they come.
#pragma once

#include <cstdint>
#include <vector>

#include "client/connection/frame_connection.hpp"
#include "client/transport.hpp"
#include "protocol/entry_blocks.hpp"

namespace kvstore {

class GetStripe {
 public:
  // `moved` counts the bytes received. Everything outlives the stripe.
  GetStripe(FrameConnection& connection, const std::vector<EntryRun>& runs, TransportBatch& batch,
            const Deadline& deadline, ClientCounters& counters, Count& moved)
      : connection_(connection),
        runs_(runs),
        batch_(batch),
        deadline_(deadline),
        counters_(counters),
        moved_(moved) {}

  // Sets the status of every entry of the runs.
  NetStatus run();

 private:
  // An entry that is on its way, and what its bytes must hash to.
  struct Wanted {
    std::vector<uint32_t> entries;
    std::vector<uint32_t> digests;
  };

  NetStatus request(const EntryRun& run, uint32_t* request_id);
  NetStatus receive(const EntryRun& run, uint32_t request_id);
  NetStatus scatter(const Wanted& wanted);
  void fail(size_t first_run, NetStatus status);

  FrameConnection& connection_;
  const std::vector<EntryRun>& runs_;
  TransportBatch& batch_;
  const Deadline& deadline_;
  ClientCounters& counters_;
  Count& moved_;
  std::vector<uint8_t> staging_;  // for pieces too small to be received one by one
};

}  // namespace kvstore
