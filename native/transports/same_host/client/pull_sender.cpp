#include "transports/same_host/client/pull_sender.hpp"

#include <algorithm>

#include "base/digest.hpp"
#include "client/connection/registrations.hpp"

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;

}  // namespace

PullSender::PullSender(const TransportBatch& batch, std::shared_ptr<const RegisteredRange> range,
                       const TransportContext& context, bool with_digests, Count& moved, Count& pulled)
    : batch_(batch),
      range_(std::move(range)),
      context_(context),
      with_digests_(with_digests),
      moved_(moved),
      pulled_(pulled),
      socket_sender_(batch, moved) {}

std::shared_ptr<const RegisteredRange> PullSender::range_of(const TransportBatch& batch,
                                                            const TransportContext& context) {
  auto range = registered_range_of(batch.memory->piece(batch.entries.front(), 0).iov_base, context);
  return range != nullptr && range->fd >= 0 ? range : nullptr;
}

NetStatus PullSender::prepare(FrameConnection& connection, const Deadline& deadline) {
  NetStatus status = unregister_stale(connection, context_, deadline);
  if (status != NetStatus::kOk) return status;
  auto& known = connection.registrations();
  for (const auto& r : known)
    if (r.registration == range_->id) return NetStatus::kOk;
  wire::Writer body(16);
  body.u64(range_->size_bytes).u32(0).u32(0);
  uint32_t id = 0;
  FrameReply reply;
  status = connection.send_request_with_descriptor(Op::kRegister, body.data(), body.size(), range_->fd,
                                                   deadline, &id);
  if (status == NetStatus::kOk) status = connection.receive_reply(Op::kRegister, id, 8, deadline, &reply);
  if (status != NetStatus::kOk) return status;
  if (reply.status != Status::kOk)
    return NetStatus::kOk;  // the segment won't have it: runs go over the socket
  try {
    known.push_back({range_->id, reply.reader().u32("buffer_id")});
  } catch (const wire::WireError&) {
    return NetStatus::kProtocol;
  }
  return NetStatus::kOk;
}

void PullSender::write_digests(wire::Writer& body, const std::vector<uint32_t>& entries) const {
  for (const uint32_t entry : entries) {
    uint32_t crc = 0;
    for (size_t j = 0; j < batch_.memory->piece_count(entry); ++j) {
      const iovec piece = batch_.memory->piece(entry, j);
      crc = crc32c(crc, static_cast<const uint8_t*>(piece.iov_base), piece.iov_len);
    }
    body.u32(crc);
  }
}

NetStatus PullSender::send(FrameConnection& connection, const EntryRun& run,
                           const data_codec::PutFields& fields, const Deadline& deadline, Op* op,
                           uint32_t* request_id) {
  const auto& known = connection.registrations();
  const auto registration =
      std::find_if(known.begin(), known.end(), [&](const auto& r) { return r.registration == range_->id; });
  const std::vector<uint32_t> entries = run.entries(batch_.keys->shard_count);
  const size_t pieces = batch_.memory->piece_count(entries.front());
  bool pullable = registration != known.end() && entries.size() * pieces <= kPullRunPieces;
  std::vector<uint64_t> offsets;
  std::vector<uint32_t> sizes;
  if (pullable) {
    offsets.reserve(entries.size() * pieces);
    sizes.reserve(entries.size() * pieces);
  }
  for (size_t i = 0; i < entries.size() && pullable; ++i) {
    pullable = batch_.memory->piece_count(entries[i]) == pieces;
    for (size_t j = 0; j < pieces && pullable; ++j) {
      const iovec piece = batch_.memory->piece(entries[i], j);
      const auto address = reinterpret_cast<uint64_t>(piece.iov_base);
      pullable = range_->contains(address, piece.iov_len) && piece.iov_len > 0;
      offsets.push_back(address - range_->address);
      sizes.push_back(static_cast<uint32_t>(piece.iov_len));
    }
  }
  if (!pullable) return socket_sender_.send(connection, run, fields, deadline, op, request_id);

  const std::vector<uint32_t> lengths = entry_lengths(entries, *batch_.memory);
  wire::Writer body(256 + run.key_count() * (kHashBytes + 8) + lengths.size() * 4 + offsets.size() * 12);
  data_codec::PutFields with_digests = fields;
  with_digests.with_digests = with_digests_;
  data_codec::write_put(body, *batch_.keys, run, with_digests, lengths);
  body.u32(registration->buffer_id).u32(static_cast<uint32_t>(pieces));
  body.raw(offsets.data(), offsets.size() * sizeof(uint64_t))
      .raw(sizes.data(), sizes.size() * sizeof(uint32_t));
  if (with_digests_) write_digests(body, entries);
  *op = Op::kPull;
  const NetStatus status = connection.send_request(*op, body.data(), body.size(), 0, deadline, request_id);
  if (status == NetStatus::kOk) {
    moved_.add(run.bytes);
    pulled_.add(run.bytes);
  }
  return status;
}

}  // namespace kvstore
