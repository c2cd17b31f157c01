#include "transports/ucx/client/put_sender.hpp"

#include <algorithm>

#include "base/digest.hpp"
#include "client/connection/put_stripe.hpp"
#include "client/connection/registrations.hpp"

namespace kvstore {

static_assert(UcxClientSession::kBounceParts >= kPutWindow,
              "a part is used again once its request is answered");

// What a request says about where the bytes are.
struct UcxPutSender::Described {
  uint32_t buffer_id = 0;
  uint32_t pieces = 1;
  std::vector<uint64_t> offsets;
  std::vector<uint32_t> sizes;
  std::vector<uint32_t> digests;
};

UcxPutSender::UcxPutSender(const TransportBatch& batch, UcxShared& shared, const PeerId& pool_id)
    : batch_(batch), shared_(shared), pool_id_(pool_id), socket_sender_(batch, shared.socket_bytes_put) {
  const uint32_t entry = batch.entries.front();
  const size_t pieces = batch.memory->piece_count(entry);
  // Small pieces are cheaper to copy than to read one by one.
  if (pieces > 1 && batch.memory->entry_bytes(entry) / pieces < kPackedPartBytes) return;
  range_ = registered_range_of(batch.memory->piece(entry, 0).iov_base, shared.context);
  if (range_ != nullptr) memory_ = shared.memory_of(range_);
}

RunLimits UcxPutSender::run_limits() const {
  if (memory_ != nullptr) return {shared_.context.run_bytes, pull_run_entries_max(batch_)};
  // A run ends with the key that reaches the limit: then it still fits a part of the bounce memory.
  uint64_t key_bytes = 0;
  for (uint32_t shard = 0; shard < batch_.keys->shard_count; ++shard)
    key_bytes += batch_.memory->entry_bytes(shard);
  const uint64_t room = UcxClientSession::kBouncePartBytes;
  return {std::min(shared_.context.run_bytes, key_bytes < room ? room - key_bytes : 1), kRunEntriesMax};
}

NetStatus UcxPutSender::prepare(FrameConnection& connection, const Deadline& deadline) {
  UcxClientSession* session = nullptr;
  NetStatus status = UcxClientSession::of(connection, shared_, pool_id_, deadline, &session);
  if (status == NetStatus::kUnreachable && shared_.socket_allowed) {
    shared_.fallbacks.add();
    return NetStatus::kOk;  // over the socket
  }
  if (status != NetStatus::kOk) return status;
  status = unregister_stale(connection, shared_.context, deadline);
  if (status != NetStatus::kOk) return status;
  if (memory_ == nullptr) return session->register_bounce(deadline);
  auto& known = connection.registrations();
  for (const auto& r : known)
    if (r.registration == range_->id) return NetStatus::kOk;
  uint32_t buffer_id = 0;
  status = session->register_with_segment(*memory_, deadline, &buffer_id);
  if (status == NetStatus::kOk && buffer_id != 0) known.push_back({range_->id, buffer_id});
  return status;
}

bool UcxPutSender::describe_in_place(FrameConnection& connection, const std::vector<uint32_t>& entries,
                                     Described* out) const {
  if (memory_ == nullptr) return false;
  const auto& known = connection.registrations();
  const auto registration =
      std::find_if(known.begin(), known.end(), [&](const auto& r) { return r.registration == range_->id; });
  if (registration == known.end()) return false;
  const size_t pieces = batch_.memory->piece_count(entries.front());
  if (entries.size() * pieces > kPullRunPieces) return false;
  out->buffer_id = registration->buffer_id;
  out->pieces = static_cast<uint32_t>(pieces);
  out->digests.assign(entries.size(), 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (batch_.memory->piece_count(entries[i]) != pieces) return false;
    for (size_t j = 0; j < pieces; ++j) {
      const iovec piece = batch_.memory->piece(entries[i], j);
      if (piece.iov_len == 0 || !memory_->contains(piece.iov_base, piece.iov_len)) return false;
      out->offsets.push_back(reinterpret_cast<uint64_t>(piece.iov_base) - memory_->address());
      out->sizes.push_back(static_cast<uint32_t>(piece.iov_len));
      out->digests[i] = crc32c(out->digests[i], static_cast<const uint8_t*>(piece.iov_base), piece.iov_len);
    }
  }
  return true;
}

bool UcxPutSender::describe_bounced(UcxClientSession& session, const EntryRun& run,
                                    const std::vector<uint32_t>& entries, Described* out) const {
  if (session.bounce_buffer_id() == 0 || run.bytes > UcxClientSession::kBouncePartBytes) return false;
  uint8_t* const part = session.next_bounce_part();
  uint8_t* to = part;
  *out = {};
  out->buffer_id = session.bounce_buffer_id();
  for (const uint32_t entry : entries) {
    uint32_t crc = 0;
    out->offsets.push_back(static_cast<uint64_t>(to - session.bounce()->data()));
    out->sizes.push_back(static_cast<uint32_t>(batch_.memory->entry_bytes(entry)));
    for (size_t j = 0; j < batch_.memory->piece_count(entry); ++j) {
      const iovec piece = batch_.memory->piece(entry, j);
      crc = copy_crc32c(crc, to, static_cast<const uint8_t*>(piece.iov_base), piece.iov_len);
      to += piece.iov_len;
    }
    out->digests.push_back(crc);
  }
  shared_.bounced_bytes.add(run.bytes);
  return true;
}

NetStatus UcxPutSender::send(FrameConnection& connection, const EntryRun& run,
                             const data_codec::PutFields& fields, const Deadline& deadline, wire::Op* op,
                             uint32_t* request_id) {
  auto* session = static_cast<UcxClientSession*>(connection.companion());
  const std::vector<uint32_t> entries = run.entries(batch_.keys->shard_count);
  Described where;
  if (session == nullptr ||
      !(describe_in_place(connection, entries, &where) || describe_bounced(*session, run, entries, &where)))
    return socket_sender_.send(connection, run, fields, deadline, op, request_id);
  const std::vector<uint32_t> lengths = entry_lengths(entries, *batch_.memory);
  wire::Writer body(256 + run.key_count() * (kHashBytes + 8) + lengths.size() * 8 +
                    where.offsets.size() * 12);
  data_codec::write_put(body, *batch_.keys, run, fields, lengths);
  body.u32(where.buffer_id).u32(where.pieces);
  body.raw(where.offsets.data(), where.offsets.size() * sizeof(uint64_t))
      .raw(where.sizes.data(), where.sizes.size() * sizeof(uint32_t))
      .raw(where.digests.data(), where.digests.size() * sizeof(uint32_t));
  *op = wire::Op::kPull;
  const NetStatus status = connection.send_request(*op, body.data(), body.size(), 0, deadline, request_id);
  if (status == NetStatus::kOk) shared_.bytes_put.add(run.bytes);
  return status;
}

}  // namespace kvstore
