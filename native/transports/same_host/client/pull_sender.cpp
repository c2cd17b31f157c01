#include "transports/same_host/client/pull_sender.hpp"

#include "base/digest.hpp"
#include "client/connection/registrations.hpp"

namespace kvstore {
namespace {

using wire::Op;

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
  const uint32_t entry = batch.entries.front();
  // The segment may have to ask the system for each piece: of small ones a copy costs less.
  if (worth_packing(batch.memory->piece_count(entry), batch.memory->entry_bytes(entry))) return nullptr;
  auto range = registered_range_of(batch.memory->piece(entry, 0).iov_base, context);
  return range != nullptr && range->fd >= 0 ? range : nullptr;
}

NetStatus PullSender::prepare(FrameConnection& connection, const Deadline& deadline) {
  const NetStatus status = unregister_stale(connection, context_, deadline);
  return status == NetStatus::kOk ? register_range(connection, *range_, context_, deadline) : status;
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
  const std::optional<uint32_t> buffer_id = registered_as(connection, *range_);
  const std::vector<uint32_t> entries = run.entries(batch_.keys->shard_count);
  const size_t pieces = batch_.memory->piece_count(entries.front());
  bool pullable = buffer_id.has_value() && entries.size() * pieces <= kPullRunPieces;
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
  body.u32(*buffer_id).u32(static_cast<uint32_t>(pieces));
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
