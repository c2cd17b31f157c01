#include "client/connection/data_channel.hpp"

#include <algorithm>

#include "client/connection/covering_commit.hpp"
#include "client/connection/disk_wait.hpp"
#include "client/connection/get_stripe.hpp"
#include "client/connection/put_stripe.hpp"

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;

// A hold outlives the reader's deadline a little, so that it never ends under a copy that is still in time.
constexpr int64_t kHoldMarginMs = 100;
// A get needs no early commits, only bounded requests.
constexpr uint64_t kGetRunBytesMax = 64u << 20;

Op op_of(BatchKind kind) {
  switch (kind) {
    case BatchKind::kPin:
      return Op::kPin;
    case BatchKind::kRemove:
      return Op::kRemove;
    case BatchKind::kKeep:
      return Op::kKeep;
    default:
      return Op::kSuspect;
  }
}

}  // namespace

DataChannel::DataChannel(PeerAddress address, const PeerId& pool_id, TransportContext& context,
                         const char* transport)
    : context_(context),
      bytes_get_(context.counters.named(transport_bytes_counter(transport, "get"))),
      bytes_put_(context.counters.named(transport_bytes_counter(transport, "put"))),
      pool_(std::move(address), context.hello, pool_id, context.connections_per_peer * kConcurrentCallsMax,
            context.connect_timeout_ms, context.counters) {}

NetStatus DataChannel::submit_statuses(TransportBatch& batch, const Deadline& deadline) {
  ConnectionPool::Lease lease;
  NetStatus status = pool_.acquire(deadline, &lease);
  batch.set_all(entry_status(status == NetStatus::kOk ? NetStatus::kClosed : status));
  if (status != NetStatus::kOk) return status;
  const Op op = op_of(batch.kind);
  if (op == Op::kKeep && (lease->features() & wire::kFeatureKeep) == 0) {
    batch.set_all(Status::kUnsupportedVersion);  // a segment of an earlier release
    context_.counters.add(Counter::kKeepUnsupported, batch.entries.size());
    lease.keep();
    return NetStatus::kOk;
  }
  for (const EntryBlock& block : make_blocks(batch.entries, batch.keys->shard_count)) {
    const EntryRun run{&block, 0, block.keys.size(), 0};
    const std::vector<uint32_t> entries = run.entries(batch.keys->shard_count);
    wire::Writer body(64 + block.shards.size() * kShardBytes + block.keys.size() * kHashBytes);
    if (batch.kind == BatchKind::kPin)
      body.u32(std::min(batch.pin_ms, wire::kPinMsMax)).u32(0);
    else if (batch.kind == BatchKind::kRemove)
      body.u8(batch.ack_committed ? 1 : 0).zeros(3).u32(commit_timeout_ms(deadline));
    else if (batch.kind == BatchKind::kKeep)
      body.keep_wish(batch.wish);
    write_run(body, *batch.keys, run);
    uint32_t id = 0;
    FrameReply reply;
    status = lease->send_request(op, body.data(), body.size(), 0, deadline, &id);
    if (status == NetStatus::kOk)
      status =
          lease->receive_reply(op, id, data_codec::kStatusesHeadBytes + entries.size(), deadline, &reply);
    if (status != NetStatus::kOk) {
      for (const uint32_t entry : entries) batch.set_status(entry, entry_status(status));
      return status;
    }
    if (reply.status != Status::kOk) {
      for (const uint32_t entry : entries)
        batch.set_status(entry, data_codec::known_status(unsigned(reply.status)));
      continue;
    }
    try {
      const std::vector<Status> statuses = data_codec::read_statuses(reply, entries.size());
      for (size_t i = 0; i < entries.size(); ++i) batch.set_status(entries[i], statuses[i]);
    } catch (const wire::WireError&) {
      return NetStatus::kProtocol;
    }
  }
  lease.keep();
  return NetStatus::kOk;
}

NetStatus DataChannel::locate(FrameConnection& connection, const EntryRun& run, TransportBatch& batch,
                              const data_codec::PoolGeometry& geometry, const Deadline& deadline,
                              Located* out) {
  out->entries = run.entries(batch.keys->shard_count);
  wire::Writer body(128 + run.key_count() * kHashBytes);
  body.u32(static_cast<uint32_t>(deadline.latest_left_ms() + kHoldMarginMs)).u32(disk_wait_ms(deadline));
  write_run(body, *batch.keys, run);
  FrameReply reply;
  NetStatus status =
      connection.send_request(Op::kLocate, body.data(), body.size(), 0, deadline, &out->locate_id);
  if (status == NetStatus::kOk)
    status = connection.receive_reply(
        Op::kLocate, out->locate_id,
        data_codec::kStatusesHeadBytes + out->entries.size() * data_codec::kLocateEntryBytes, deadline,
        &reply);
  if (status != NetStatus::kOk) return status;
  if (reply.status != Status::kOk) {
    for (const uint32_t entry : out->entries)
      batch.set_status(entry, data_codec::known_status(unsigned(reply.status)));
    return NetStatus::kOk;
  }
  try {
    out->locations =
        data_codec::read_locate_reply(reply, entry_lengths(out->entries, *batch.memory), geometry);
  } catch (const wire::WireError&) {
    return NetStatus::kProtocol;
  }
  return NetStatus::kOk;
}

NetStatus DataChannel::unpin(FrameConnection& connection, const Located& located, const Deadline& deadline) {
  wire::Writer body(4);
  body.u32(located.locate_id);
  uint32_t id = 0;
  return connection.send_request(Op::kUnpin, body.data(), body.size(), 0, deadline, &id);
}

NetStatus DataChannel::cut(TransportBatch& batch, const RunLimits& limits, const Deadline& deadline,
                           Stripes* out) {
  const uint32_t shard_count = batch.keys->shard_count;
  const Pieces& memory = *batch.memory;
  uint64_t total_bytes = 0;
  for (const uint32_t entry : batch.entries) total_bytes += memory.entry_bytes(entry);
  const size_t wanted = std::clamp<uint64_t>(total_bytes / kStripeBytesMin, 1,
                                             std::max<size_t>(context_.connections_per_peer, 1));
  const NetStatus status = pool_.acquire_several(wanted, deadline, &out->leases);
  batch.set_all(entry_status(status == NetStatus::kOk ? NetStatus::kClosed : status));
  if (status != NetStatus::kOk) return status;

  out->blocks = make_blocks(batch.entries, shard_count);
  out->runs = cut_stripes(out->blocks, shard_count, out->leases.size(), limits,
                          [&](uint32_t entry) { return memory.entry_bytes(entry); });
  for (size_t i = out->runs.size(); i < out->leases.size(); ++i) out->leases[i].keep();
  out->leases.resize(out->runs.size());  // the others are not needed after all
  // Until a part has run to its end it counts as failed, whatever ended it.
  out->outcomes.assign(out->runs.size(), NetStatus::kClosed);
  return status;
}

NetStatus DataChannel::Stripes::end() {
  NetStatus status = NetStatus::kOk;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (outcomes[i] == NetStatus::kOk)
      leases[i].keep();
    else
      status = outcomes[i];
  }
  return status;
}

NetStatus DataChannel::run_stripes(TransportBatch& batch, const RunLimits& limits, const Deadline& deadline,
                                   const Stripe& stripe) {
  Stripes stripes;
  const NetStatus status = cut(batch, limits, deadline, &stripes);
  if (status != NetStatus::kOk) return status;
  context_.workers.run(stripes.runs.size(),
                       [&](size_t i) { stripes.outcomes[i] = stripe(*stripes.leases[i], stripes.runs[i]); });
  return stripes.end();
}

NetStatus DataChannel::get(TransportBatch& batch, const Deadline& deadline) {
  return run_stripes(batch, {kGetRunBytesMax, kRunEntriesMax}, deadline,
                     [&](FrameConnection& connection, const std::vector<EntryRun>& runs) {
                       return get_stripe(connection, runs, batch, deadline);
                     });
}

NetStatus DataChannel::get_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs,
                                  TransportBatch& batch, const Deadline& deadline) {
  return GetStripe(connection, runs, batch, deadline, context_.counters, bytes_get_).run();
}

NetStatus DataChannel::put(TransportBatch& batch, const Deadline& deadline) {
  SocketRunSender sender(batch, bytes_put_);
  return put(batch, deadline, sender, {context_.run_bytes, kRunEntriesMax});
}

NetStatus DataChannel::put(TransportBatch& batch, const Deadline& deadline, RunSender& sender,
                           const RunLimits& limits) {
  Stripes stripes;
  const NetStatus status = cut(batch, limits, deadline, &stripes);
  if (status != NetStatus::kOk) return status;
  const bool together = stripes.runs.size() > 1 &&
                        std::all_of(stripes.leases.begin(), stripes.leases.end(), [](const auto& lease) {
                          return (lease->features() & wire::kFeatureCommit) != 0;
                        });
  // Runs on several connections come to the segment in any order, and a chain is kept from its head on: one KEEP
  // behind them all. On one connection each run says it for itself.
  const wire::KeepWish wish = batch.wish;
  const bool keeps_after = wish.intent != wire::Intent::kNormal && stripes.runs.size() > 1;
  if (keeps_after) batch.wish = {};
  std::vector<CoveringCommit> commits;
  commits.reserve(stripes.runs.size());
  for (const auto& runs : stripes.runs) commits.emplace_back(batch, runs.size(), !together);
  context_.workers.run(stripes.runs.size(), [&](size_t i) {
    stripes.outcomes[i] = put_stripe(*stripes.leases[i], stripes.runs[i], batch, deadline, sender, commits[i],
                                     context_.counters);
  });
  if (together) commit(stripes, commits, deadline);
  const NetStatus ended = stripes.end();
  if (keeps_after) keep_stored(batch, wish, deadline);
  return ended;
}

void DataChannel::keep_stored(const TransportBatch& put, const wire::KeepWish& wish,
                              const Deadline& deadline) {
  TransportBatch keep;
  keep.kind = BatchKind::kKeep;
  keep.keys = put.keys;
  keep.wish = wish;
  for (const uint32_t entry : put.entries)
    if (put.status(entry) == Status::kOk || put.status(entry) == Status::kExists ||
        put.status(entry) == Status::kNotCommitted)
      keep.entries.push_back(entry);
  if (keep.entries.empty()) return;
  std::vector<uint8_t> outcomes(put.keys->entry_count());
  keep.statuses = outcomes.data();
  submit_statuses(keep, deadline);  // a hint: the put has its answer whatever comes of it
  const auto refused = std::count_if(keep.entries.begin(), keep.entries.end(),
                                     [&](uint32_t entry) { return keep.status(entry) == Status::kNoSpace; });
  context_.counters.add(Counter::kKeepRefused, static_cast<uint64_t>(refused));
}

void DataChannel::commit(Stripes& stripes, std::vector<CoveringCommit>& commits, const Deadline& deadline) {
  uint64_t journal_seq = 0;
  for (const CoveringCommit& commit : commits) journal_seq = std::max(journal_seq, commit.journal_seq());
  const auto good = std::find(stripes.outcomes.begin(), stripes.outcomes.end(), NetStatus::kOk);
  if (journal_seq == 0 || good == stripes.outcomes.end()) return;
  bool durable = false;
  const auto i = good - stripes.outcomes.begin();
  *good = commit_journal(*stripes.leases[static_cast<size_t>(i)], journal_seq, deadline, &durable);
  if (durable)
    for (CoveringCommit& commit : commits) commit.covered();
}

}  // namespace kvstore
