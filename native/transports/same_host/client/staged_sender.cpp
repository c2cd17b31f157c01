#include "transports/same_host/client/staged_sender.hpp"

#include <algorithm>
#include <optional>
#include <system_error>

#include "base/digest.hpp"
#include "client/connection/registrations.hpp"

namespace kvstore {
namespace {

using wire::Op;

// How much is copied between two looks at the clock.
constexpr uint64_t kClockBytes = 256u << 10;
// Small enough to stay in the caches, where the segment finds it: what is larger is written past them.
constexpr size_t kNearBytes = 8u << 10;

uint32_t copy_near(uint32_t crc, uint8_t* to, const uint8_t* from, size_t size) {
  for (size_t done = 0; done < size; done += kNearBytes)
    crc = copy_crc32c(crc, to + done, from + done, std::min(kNearBytes, size - done));
  return crc;
}

}  // namespace

NetStatus StagedSender::prepare(FrameConnection& connection, const Deadline& deadline) {
  NetStatus status = unregister_stale(connection, context_, deadline);
  if (status != NetStatus::kOk) return status;
  if (connection.companion() == nullptr) {
    try {
      connection.set_companion(std::make_shared<StagingArea>());
    } catch (const std::system_error&) {
      return NetStatus::kOk;  // no memory for it: runs go over the socket
    }
  }
  const auto* area = static_cast<const StagingArea*>(connection.companion());
  const auto range = registered_range_of(area->buffer().data(), context_);
  return range == nullptr ? NetStatus::kOk : register_range(connection, *range, context_, deadline);
}

bool StagedSender::copy(uint32_t entry, uint8_t* to, const Deadline& deadline, uint32_t* digest) const {
  *digest = 0;
  for (size_t j = 0; j < batch_.memory->piece_count(entry); ++j) {
    const iovec piece = batch_.memory->piece(entry, j);
    const auto* from = static_cast<const uint8_t*>(piece.iov_base);
    for (size_t left = piece.iov_len; left > 0;) {
      if (deadline.expired()) return false;
      deadline.moved();
      const size_t step = std::min<size_t>(left, kClockBytes);
      *digest = copy_near(*digest, to, from, step);
      to += step, from += step, left -= step;
    }
  }
  return true;
}

NetStatus StagedSender::send(FrameConnection& connection, const EntryRun& run,
                             const data_codec::PutFields& fields, const Deadline& deadline, Op* op,
                             uint32_t* request_id) {
  auto* area = static_cast<StagingArea*>(connection.companion());
  const auto range = area == nullptr ? nullptr : registered_range_of(area->buffer().data(), context_);
  const std::optional<uint32_t> buffer_id =
      range == nullptr ? std::nullopt : registered_as(connection, *range);
  if (!buffer_id || run.bytes > kStagedRunBytesMax)
    return socket_sender_.send(connection, run, fields, deadline, op, request_id);

  const std::vector<uint32_t> entries = run.entries(batch_.keys->shard_count);
  const std::vector<uint32_t> lengths = entry_lengths(entries, *batch_.memory);
  std::vector<uint64_t> offsets(entries.size());
  std::vector<uint32_t> digests(entries.size());
  uint8_t* to = area->next_place();
  for (size_t i = 0; i < entries.size(); ++i) {
    offsets[i] = reinterpret_cast<uint64_t>(to) - range->address;
    if (!copy(entries[i], to, deadline, &digests[i])) return NetStatus::kTimeout;
    to += lengths[i];
  }
  wire::Writer body(256 + run.key_count() * (kHashBytes + 8) + entries.size() * 20);
  data_codec::PutFields with_digests = fields;
  with_digests.with_digests = true;
  data_codec::write_put(body, *batch_.keys, run, with_digests, lengths);
  body.u32(*buffer_id).u32(1);
  body.raw(offsets.data(), offsets.size() * sizeof(uint64_t))
      .raw(lengths.data(), lengths.size() * sizeof(uint32_t))
      .raw(digests.data(), digests.size() * sizeof(uint32_t));
  *op = Op::kPull;
  const NetStatus status = connection.send_request(*op, body.data(), body.size(), 0, deadline, request_id);
  if (status == NetStatus::kOk) {
    moved_.add(run.bytes);
    staged_.add(run.bytes);
  }
  return status;
}

}  // namespace kvstore
