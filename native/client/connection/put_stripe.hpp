// Puts runs over one connection, a few of them ahead of their replies.
#pragma once

#include <vector>

#include "client/client_counters.hpp"
#include "client/connection/covering_commit.hpp"
#include "client/connection/frame_connection.hpp"
#include "client/connection/run_sender.hpp"
#include "client/transport.hpp"
#include "protocol/entry_blocks.hpp"

namespace kvstore {

// Sets the status of every entry of the runs; `commit` is that of these runs.
NetStatus put_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs, TransportBatch& batch,
                     const Deadline& deadline, RunSender& sender, CoveringCommit& commit,
                     ClientCounters& counters);

// Waits until what the replies of this peer have given `journal_seq` for is durable. *durable: it is.
NetStatus commit_journal(FrameConnection& connection, uint64_t journal_seq, const Deadline& deadline,
                         bool* durable);

// Puts in flight on a connection. More would only lengthen what a failure leaves unknown; with runs of at
// most kRunEntriesMax entries their replies always fit the socket's buffer, so neither side can block the
// other.
constexpr size_t kPutWindow = 4;

}  // namespace kvstore
