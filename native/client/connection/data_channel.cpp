#include "client/connection/data_channel.hpp"

#include <algorithm>
#include <deque>

#include "base/digest.hpp"

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;

constexpr size_t kGetWindow =
    2;  // requests in flight on a connection, bounded for the same reasons as kPutWindow
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
    default:
      return Op::kSuspect;
  }
}

bool worth_packing(size_t parts, size_t bytes) { return parts > 1 && bytes / parts < kPackedPartBytes; }

}  // namespace

uint32_t commit_timeout_ms(const Deadline& deadline) {
  const int64_t left = deadline.left_ms();
  return static_cast<uint32_t>(std::max<int64_t>(left - std::clamp<int64_t>(left / 10, 5, 50), 1));
}

std::vector<uint32_t> entry_lengths(const std::vector<uint32_t>& entries, const Pieces& memory) {
  std::vector<uint32_t> lengths(entries.size());
  for (size_t i = 0; i < entries.size(); ++i)
    lengths[i] = static_cast<uint32_t>(memory.entry_bytes(entries[i]));
  return lengths;
}

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
  for (const EntryBlock& block : make_blocks(batch.entries, batch.keys->shard_count)) {
    const EntryRun run{&block, 0, block.keys.size(), 0};
    const std::vector<uint32_t> entries = run.entries(batch.keys->shard_count);
    wire::Writer body(64 + block.shards.size() * kShardBytes + block.keys.size() * kHashBytes);
    if (batch.kind == BatchKind::kPin)
      body.u32(std::min(batch.pin_ms, wire::kPinMsMax)).u32(0);
    else if (batch.kind == BatchKind::kRemove)
      body.u8(batch.ack_committed ? 1 : 0).zeros(3).u32(commit_timeout_ms(deadline));
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
  body.u32(static_cast<uint32_t>(deadline.left_ms() + kHoldMarginMs)).u32(0);
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

NetStatus DataChannel::run_stripes(TransportBatch& batch, const RunLimits& limits, const Deadline& deadline,
                                   const Stripe& stripe) {
  const uint32_t shard_count = batch.keys->shard_count;
  const Pieces& memory = *batch.memory;
  uint64_t total_bytes = 0;
  for (const uint32_t entry : batch.entries) total_bytes += memory.entry_bytes(entry);
  const size_t wanted = std::clamp<uint64_t>(total_bytes / kStripeBytesMin, 1,
                                             std::max<size_t>(context_.connections_per_peer, 1));
  std::vector<ConnectionPool::Lease> leases;
  NetStatus status = pool_.acquire_several(wanted, deadline, &leases);
  batch.set_all(entry_status(status == NetStatus::kOk ? NetStatus::kClosed : status));
  if (status != NetStatus::kOk) return status;

  const std::vector<EntryBlock> blocks = make_blocks(batch.entries, shard_count);
  const auto stripes = cut_stripes(blocks, shard_count, leases.size(), limits,
                                   [&](uint32_t entry) { return memory.entry_bytes(entry); });
  // Until a part has run to its end it counts as failed, whatever ended it.
  std::vector<NetStatus> outcomes(stripes.size(), NetStatus::kClosed);
  context_.workers.run(stripes.size(), [&](size_t i) {
    outcomes[i] = stripe(*leases[i], stripes[i]);
    if (outcomes[i] == NetStatus::kOk) leases[i].keep();
  });
  for (size_t i = stripes.size(); i < leases.size(); ++i) leases[i].keep();  // not needed after all
  for (const NetStatus outcome : outcomes)
    if (outcome != NetStatus::kOk) status = outcome;
  return status;
}

NetStatus DataChannel::get(TransportBatch& batch, const Deadline& deadline) {
  return run_stripes(batch, {kGetRunBytesMax, kRunEntriesMax}, deadline,
                     [&](FrameConnection& connection, const std::vector<EntryRun>& runs) {
                       return get_stripe(connection, runs, batch, deadline);
                     });
}

NetStatus DataChannel::get_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs,
                                  TransportBatch& batch, const Deadline& deadline) {
  std::vector<uint8_t> staging;
  std::deque<uint32_t> request_ids;
  size_t sent = 0;
  for (size_t received = 0; received < runs.size(); ++received) {
    for (; sent < runs.size() && sent - received < kGetWindow; ++sent) {
      const std::vector<uint32_t> lengths =
          entry_lengths(runs[sent].entries(batch.keys->shard_count), *batch.memory);
      wire::Writer body(128 + runs[sent].key_count() * kHashBytes + lengths.size() * sizeof(uint32_t));
      body.zeros(8);
      write_run(body, *batch.keys, runs[sent]);
      body.raw(lengths.data(), lengths.size() * sizeof(uint32_t));
      request_ids.emplace_back();
      const NetStatus status =
          connection.send_request(Op::kGet, body.data(), body.size(), 0, deadline, &request_ids.back());
      if (status != NetStatus::kOk) {
        for (size_t i = received; i < runs.size(); ++i)
          for (const uint32_t entry : runs[i].entries(batch.keys->shard_count))
            batch.set_status(entry, entry_status(status));
        return status;
      }
    }
    const NetStatus status =
        receive_run(connection, runs[received], request_ids.front(), batch, deadline, staging);
    request_ids.pop_front();
    if (status == NetStatus::kOk) continue;
    for (size_t i = received + 1; i < runs.size(); ++i)
      for (const uint32_t entry : runs[i].entries(batch.keys->shard_count))
        batch.set_status(entry, entry_status(status));
    return status;
  }
  return NetStatus::kOk;
}

NetStatus DataChannel::receive_run(FrameConnection& connection, const EntryRun& run, uint32_t request_id,
                                   TransportBatch& batch, const Deadline& deadline,
                                   std::vector<uint8_t>& staging) {
  const std::vector<uint32_t> entries = run.entries(batch.keys->shard_count);
  const std::vector<uint32_t> lengths = entry_lengths(entries, *batch.memory);
  FrameReply reply;
  NetStatus status = connection.receive_reply(
      Op::kGet, request_id, data_codec::kStatusesHeadBytes + entries.size() * data_codec::kGetEntryBytes,
      deadline, &reply);
  if (status == NetStatus::kOk && reply.status != Status::kOk) {
    if (reply.payload_bytes > 0) return NetStatus::kProtocol;
    for (const uint32_t entry : entries)
      batch.set_status(entry, data_codec::known_status(unsigned(reply.status)));
    return NetStatus::kOk;
  }
  std::vector<data_codec::GetAnswer> answers;
  try {
    if (status == NetStatus::kOk) answers = data_codec::read_get_reply(reply, lengths);
  } catch (const wire::WireError&) {
    status = NetStatus::kProtocol;
  }
  if (status != NetStatus::kOk) {
    for (const uint32_t entry : entries) batch.set_status(entry, entry_status(status));
    return status;
  }

  std::vector<uint32_t> wanted, digests;  // of the OK entries
  for (size_t i = 0; i < entries.size(); ++i) {
    batch.set_status(entries[i], answers[i].status);
    if (answers[i].status != Status::kOk) continue;
    batch.set_status(entries[i], Status::kUnavailable);  // until all its bytes are here
    wanted.push_back(entries[i]);
    digests.push_back(answers[i].digest);
  }
  PieceCursor cursor(*batch.memory, wanted);
  std::vector<PieceCursor::Part> parts;
  std::vector<iovec> iov;
  size_t bytes = 0, ordinal = 0;
  uint64_t entry_received = 0;
  uint32_t crc = 0;
  while (cursor.next(kStepBytes, kStepPartsMax, &parts, &bytes)) {
    const bool packed = worth_packing(parts.size(), bytes);
    iov.clear();
    if (packed) {
      staging.resize(kStepBytes);
      iov.push_back({staging.data(), bytes});
    } else {
      for (const auto& part : parts) iov.push_back({part.data, part.size});
    }
    status = deadline.expired() ? NetStatus::kTimeout
                                : connection.receive_payload(iov.data(), iov.size(), deadline);
    if (status != NetStatus::kOk) {
      for (size_t i = ordinal; i < wanted.size(); ++i) batch.set_status(wanted[i], entry_status(status));
      return status;
    }
    const uint8_t* from = staging.data();
    for (const auto& part : parts) {
      crc = packed ? copy_crc32c(crc, part.data, from, part.size) : crc32c(crc, part.data, part.size);
      from += packed ? part.size : 0;
      entry_received += part.size;
      if (entry_received < batch.memory->entry_bytes(wanted[ordinal])) continue;
      const bool intact = crc == digests[ordinal];
      batch.set_status(wanted[ordinal], intact ? Status::kOk : Status::kDigestMismatch);
      if (!intact) context_.counters.add(Counter::kDigestMismatches);
      ++ordinal;
      entry_received = 0;
      crc = 0;
    }
    bytes_get_.add(bytes);
  }
  return NetStatus::kOk;
}

NetStatus SocketRunSender::send(FrameConnection& connection, const EntryRun& run,
                                const data_codec::PutFields& fields, const Deadline& deadline, Op* op,
                                uint32_t* request_id) {
  const std::vector<uint32_t> entries = run.entries(batch_.keys->shard_count);
  const std::vector<uint32_t> lengths = entry_lengths(entries, *batch_.memory);
  wire::Writer body(256 + run.key_count() * (kHashBytes + 8) + lengths.size() * sizeof(uint32_t));
  data_codec::write_put(body, *batch_.keys, run, fields, lengths);
  *op = Op::kPut;
  NetStatus status = connection.send_request(
      *op, body.data(), body.size(), run.bytes + entries.size() * sizeof(uint32_t), deadline, request_id);
  std::vector<uint32_t> digests(entries.size(), 0);
  std::vector<uint8_t> staging;
  PieceCursor cursor(*batch_.memory, entries);
  std::vector<PieceCursor::Part> parts;
  std::vector<iovec> iov;
  size_t bytes = 0;
  while (status == NetStatus::kOk && cursor.next(kStepBytes, kStepPartsMax, &parts, &bytes)) {
    iov.clear();
    if (worth_packing(parts.size(), bytes)) {
      staging.resize(kStepBytes);
      uint8_t* to = staging.data();
      for (const auto& part : parts) {
        digests[part.ordinal] = copy_crc32c(digests[part.ordinal], to, part.data, part.size);
        to += part.size;
      }
      iov.push_back({staging.data(), bytes});
    } else {
      for (const auto& part : parts) {
        digests[part.ordinal] = crc32c(digests[part.ordinal], part.data, part.size);
        iov.push_back({part.data, part.size});
      }
    }
    status = deadline.expired() ? NetStatus::kTimeout
                                : connection.send_bytes(iov.data(), iov.size(), deadline, true);
    moved_.add(bytes);
  }
  if (status != NetStatus::kOk) return status;
  iovec trailer{digests.data(), digests.size() * sizeof(uint32_t)};
  return connection.send_bytes(&trailer, 1, deadline, false);
}

NetStatus DataChannel::put(TransportBatch& batch, const Deadline& deadline) {
  SocketRunSender sender(batch, bytes_put_);
  return put(batch, deadline, sender, {context_.run_bytes, kRunEntriesMax});
}

NetStatus DataChannel::put(TransportBatch& batch, const Deadline& deadline, RunSender& sender,
                           const RunLimits& limits) {
  return run_stripes(batch, limits, deadline,
                     [&](FrameConnection& connection, const std::vector<EntryRun>& runs) {
                       return put_stripe(connection, runs, batch, deadline, sender);
                     });
}

NetStatus DataChannel::put_stripe(FrameConnection& connection, const std::vector<EntryRun>& runs,
                                  TransportBatch& batch, const Deadline& deadline, RunSender& sender) {
  struct Sent {
    Op op;
    uint32_t request_id;
  };
  std::deque<Sent> window;
  std::vector<uint32_t>
      sealed;  // written by runs before the last one: good once that one's acknowledgement is here
  size_t answered = 0;
  const auto receive_one = [&]() -> NetStatus {
    const std::vector<uint32_t> entries = runs[answered].entries(batch.keys->shard_count);
    FrameReply reply;
    const NetStatus status =
        connection.receive_reply(window.front().op, window.front().request_id,
                                 data_codec::kStatusesHeadBytes + entries.size(), deadline, &reply);
    if (status != NetStatus::kOk) return status;
    window.pop_front();
    if (reply.status != Status::kOk && reply.status != Status::kNotCommitted) {
      for (const uint32_t entry : entries)
        batch.set_status(entry, data_codec::known_status(unsigned(reply.status)));
    } else {
      std::vector<Status> statuses;
      try {
        statuses = data_codec::read_statuses(reply, entries.size());
      } catch (const wire::WireError&) {
        return NetStatus::kProtocol;
      }
      const bool covered =
          !batch.ack_committed || (answered + 1 == runs.size() && reply.status == Status::kOk);
      for (size_t i = 0; i < entries.size(); ++i) {
        const bool waits = statuses[i] == Status::kOk && !covered;
        if (waits) sealed.push_back(entries[i]);
        batch.set_status(entries[i], waits ? Status::kNotCommitted : statuses[i]);
      }
    }
    if (++answered == runs.size() && reply.status == Status::kOk)
      for (const uint32_t entry : sealed) batch.set_status(entry, Status::kOk);
    return NetStatus::kOk;
  };

  NetStatus status = sender.prepare(connection, deadline);
  for (size_t i = 0; i < runs.size() && status == NetStatus::kOk; ++i) {
    if (window.size() == kPutWindow) status = receive_one();
    if (status != NetStatus::kOk) break;
    data_codec::PutFields fields;
    // The last run's acknowledgement covers all that this connection has sealed.
    fields.head.ack_committed = batch.ack_committed && i + 1 == runs.size();
    fields.head.commit_timeout_ms = commit_timeout_ms(deadline);
    fields.depth = batch.depth;
    fields.texts = batch.texts;
    window.emplace_back();
    status = sender.send(connection, runs[i], fields, deadline, &window.back().op, &window.back().request_id);
  }
  while (status == NetStatus::kOk && answered < runs.size()) status = receive_one();

  for (size_t i = answered; i < runs.size(); ++i)
    for (const uint32_t entry : runs[i].entries(batch.keys->shard_count))
      batch.set_status(entry, entry_status(status));
  return status;
}

}  // namespace kvstore
