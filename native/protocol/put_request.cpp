#include "protocol/put_request.hpp"

#include <string>

namespace kvstore {

using wire::Status;
using wire::WireError;

PutRequest read_put_request(wire::Reader& reader) {
  PutRequest put;
  const uint8_t ack = reader.u8("ack");
  if (ack > 1)
    throw WireError(Status::kBadRequest, "ack is 0 (sealed) or 1 (committed), not " + std::to_string(ack));
  put.ack_committed = ack == 1;
  const uint8_t flags = reader.u8("flags");
  reader.u16("reserved");
  put.commit_timeout_ms = reader.u32("commit_timeout_ms");
  put.block = read_key_block(reader);
  const uint32_t n = put.block.entry_count(), keys = put.block.key_count;
  put.lengths = reader.bytes(size_t{n} * 4, "lengths");
  for (uint32_t i = 0; i < n; ++i) {
    if (put.length(i) > wire::kObjectBytesMax)
      throw WireError(Status::kTooLarge, "object of " + std::to_string(put.length(i)) +
                                             " bytes is over the cap of " +
                                             std::to_string(wire::kObjectBytesMax));
    put.total_bytes += put.length(i);
  }
  if (put.total_bytes + size_t{n} * 4 > wire::kPayloadBytesMax)
    throw WireError(Status::kTooLarge, "objects of " + std::to_string(put.total_bytes) +
                                           " bytes in all are over the payload cap of " +
                                           std::to_string(wire::kPayloadBytesMax) + ": cut the batch");
  put.has_digests = (flags & wire::kPutHasDigests) != 0;
  if ((flags & wire::kPutHasDepths) != 0) put.depths = reader.bytes(size_t{keys} * 4, "depths");
  if ((flags & wire::kPutHasTexts) != 0) {
    wire::Reader sizes(reader.bytes(size_t{keys} * 2, "text_bytes"), size_t{keys} * 2);
    put.texts.reserve(keys);
    for (uint32_t k = 0; k < keys; ++k) {
      const uint16_t size = sizes.u16("text_bytes");
      if (size > wire::kTextBytesMax)
        throw WireError(Status::kTooLarge, "key text of " + std::to_string(size) +
                                               " bytes is over the cap of " +
                                               std::to_string(wire::kTextBytesMax));
      put.texts.push_back(reader.text(size, "text"));
    }
  }
  put.has_intent = (flags & wire::kPutHasIntent) != 0;
  if (put.has_intent) put.keep = wire::read_keep_wish(reader);
  put.fingerprints = put.block.fingerprints();
  return put;
}

}  // namespace kvstore
