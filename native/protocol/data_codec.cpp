#include "protocol/data_codec.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/digest.hpp"

namespace kvstore::data_codec {
namespace {

using wire::Status;
using wire::WireError;

// Count and reserved word, with which a list of answers starts on this port.
void check_list(wire::Reader& reader, size_t asked) {
  wire::check_count(reader, asked);
  reader.u32("reserved");
}

}  // namespace

Status known_status(unsigned code) {
  return code <= static_cast<unsigned>(Status::kWrongPeer) ? static_cast<Status>(code) : Status::kInternal;
}

namespace {

std::vector<Status> take_statuses(wire::Reader& reader, size_t entry_count) {
  check_list(reader, entry_count);
  const uint8_t* codes = reader.bytes(entry_count, "statuses");
  std::vector<Status> statuses(entry_count);
  for (size_t i = 0; i < entry_count; ++i) statuses[i] = known_status(codes[i]);
  return statuses;
}

}  // namespace

void write_put(wire::Writer& body, const KeyBlock& keys, const EntryRun& run, const PutFields& fields,
               const std::vector<uint32_t>& lengths) {
  uint8_t flags = wire::kPutHasDepths;
  if (fields.texts != nullptr) flags |= wire::kPutHasTexts;
  if (fields.with_digests) flags |= wire::kPutHasDigests;
  const bool with_intent = fields.keep.intent != wire::Intent::kNormal;
  if (with_intent) flags |= wire::kPutHasIntent;
  body.u8(fields.head.ack_committed ? 1 : 0).u8(flags).u16(0).u32(fields.head.commit_timeout_ms);
  write_run(body, keys, run);
  body.raw(lengths.data(), lengths.size() * sizeof(uint32_t));
  for (size_t k = run.key_begin; k < run.key_end; ++k) body.u32(fields.depth + run.block->keys[k]);
  if (fields.texts != nullptr) {
    for (size_t k = run.key_begin; k < run.key_end; ++k)
      body.u16(static_cast<uint16_t>((*fields.texts)[run.block->keys[k]].size()));
    for (size_t k = run.key_begin; k < run.key_end; ++k) {
      const std::string_view text = (*fields.texts)[run.block->keys[k]];
      body.raw(text.data(), text.size());
    }
  }
  if (with_intent) body.keep_wish(fields.keep);
}

std::vector<Status> read_statuses(const FrameReply& reply, size_t entry_count) {
  wire::Reader reader = reply.reader();
  return take_statuses(reader, entry_count);
}

PutAnswer read_put_reply(const FrameReply& reply, size_t entry_count) {
  wire::Reader reader = reply.reader();
  PutAnswer answer;
  answer.statuses = take_statuses(reader, entry_count);
  if (reader.left() >= 8) answer.journal_seq = reader.u64("journal_seq");
  if (reader.left() >= 8) {
    const uint32_t not_kept = reader.u32("not_kept");
    answer.not_kept = static_cast<uint32_t>(std::min<size_t>(not_kept, entry_count));
  }
  return answer;
}

std::vector<GetAnswer> read_get_reply(const FrameReply& reply,
                                      const std::vector<uint32_t>& expected_lengths) {
  wire::Reader reader = reply.reader();
  check_list(reader, expected_lengths.size());
  std::vector<GetAnswer> answers(expected_lengths.size());
  uint64_t payload_bytes = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    answers[i].status = known_status(reader.u8("status"));
    const uint8_t digest_alg = reader.u8("digest_alg");
    reader.u16("reserved");
    const uint32_t length = reader.u32("length");
    answers[i].digest = reader.u32("digest");
    reader.u32("reserved");
    if (answers[i].status != Status::kOk) continue;
    if (length != expected_lengths[i])
      throw WireError(Status::kBadRequest, "an object of " + std::to_string(length) + " bytes where " +
                                               std::to_string(expected_lengths[i]) + " were asked for");
    if (digest_alg != kDigestCrc32c)
      throw WireError(Status::kBadRequest, "digest algorithm " + std::to_string(digest_alg) + " is unknown");
    payload_bytes += length;
  }
  if (payload_bytes != reply.payload_bytes)
    throw WireError(Status::kBadRequest, "a payload of " + std::to_string(reply.payload_bytes) +
                                             " bytes for objects of " + std::to_string(payload_bytes));
  return answers;
}

PoolGeometry read_attach_reply(const FrameReply& reply) {
  wire::Reader reader = reply.reader();
  PoolGeometry g;
  g.map_bytes = reader.u64("map_bytes");
  g.table_offset = reader.u64("table_offset");
  g.slot_count = reader.u32("slot_count");
  g.slot_bytes = reader.u32("slot_bytes");
  std::memcpy(g.pool_id.data(), reader.bytes(g.pool_id.size(), "pool_id"), g.pool_id.size());
  // Generations are read as aligned 64-bit words.
  if (g.slot_bytes < kSlotHeaderBytes || g.slot_bytes % 8 != 0 || g.table_offset % 8 != 0 ||
      g.slot_count == 0 || g.table_offset > g.map_bytes ||
      uint64_t{g.slot_count} * g.slot_bytes > g.map_bytes - g.table_offset)
    throw WireError(Status::kBadRequest, "the slot table does not lie in the pool's map");
  return g;
}

std::vector<Location> read_locate_reply(const FrameReply& reply,
                                        const std::vector<uint32_t>& expected_lengths,
                                        const PoolGeometry& geometry) {
  wire::Reader reader = reply.reader();
  check_list(reader, expected_lengths.size());
  std::vector<Location> locations(expected_lengths.size());
  for (size_t i = 0; i < locations.size(); ++i) {
    Location& l = locations[i];
    l.offset = reader.u64("offset");
    l.generation = reader.u64("generation");
    const uint32_t length = reader.u32("length");
    l.digest = reader.u32("digest");
    l.slot = reader.u32("slot");
    l.status = known_status(reader.u8("status"));
    const uint8_t digest_alg = reader.u8("digest_alg");
    reader.u16("reserved");
    if (l.status != Status::kOk) continue;
    if (length != expected_lengths[i]) {
      l.status =
          Status::kLengthMismatch;  // LOCATE carries no expectation, so another length is an honest answer
      continue;
    }
    if (l.offset > geometry.map_bytes || length > geometry.map_bytes - l.offset ||
        l.slot >= geometry.slot_count || l.generation % 2 != 0)
      throw WireError(Status::kBadRequest, "a location outside of the pool");
    if (digest_alg != kDigestCrc32c)
      throw WireError(Status::kBadRequest, "digest algorithm " + std::to_string(digest_alg) + " is unknown");
  }
  return locations;
}

}  // namespace kvstore::data_codec
