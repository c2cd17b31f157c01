#include "protocol/wire.hpp"

namespace kvstore::wire {

Header decode_header(const uint8_t in[kHeaderBytes]) {
  Header h;
  std::memcpy(&h.magic, in + 0, 4);
  h.version = in[4];
  h.op = in[5];
  std::memcpy(&h.flags, in + 6, 2);
  std::memcpy(&h.request_id, in + 8, 4);
  std::memcpy(&h.body_bytes, in + 12, 4);
  std::memcpy(&h.payload_bytes, in + 16, 8);
  if (h.magic != kMagic) throw WireError(Status::kBadRequest, "not a kvstore frame (bad magic)");
  if (h.body_bytes > kBodyBytesMax)
    throw WireError(Status::kTooLarge, "body of " + std::to_string(h.body_bytes) +
                                           " bytes is over the cap of " + std::to_string(kBodyBytesMax));
  if (h.payload_bytes > kPayloadBytesMax)
    throw WireError(Status::kTooLarge, "payload of " + std::to_string(h.payload_bytes) +
                                           " bytes is over the cap of " + std::to_string(kPayloadBytesMax));
  return h;
}

void Reader::short_body(size_t wanted, const char* field) const {
  throw WireError(Status::kBadRequest, std::string("body too short for ") + field + ": " +
                                           std::to_string(wanted) + " bytes wanted, " +
                                           std::to_string(left_) + " left");
}

KeepWish read_keep_wish(Reader& reader) {
  KeepWish wish;
  const uint8_t intent = reader.u8("intent");
  if (intent > static_cast<uint8_t>(Intent::kDemote))
    throw WireError(Status::kBadRequest,
                    "intent is 0 (normal), 1 (retain) or 2 (demote), not " + std::to_string(intent));
  wish.intent = static_cast<Intent>(intent);
  reader.bytes(3, "reserved");
  wish.ttl_ms = reader.u32("ttl_ms");
  return wish;
}

void check_count(Reader& reader, size_t asked) {
  const uint32_t count = reader.u32("count");
  if (count != asked)
    throw WireError(Status::kBadRequest, "a reply for " + std::to_string(count) +
                                             " entries to a request for " + std::to_string(asked));
}

ReplyPrefix read_reply_prefix(Reader& reader) {
  ReplyPrefix prefix;
  const uint16_t status = reader.u16("status");
  // A status that this side does not know is none that it could act on, least of all what its low byte happens to be.
  prefix.status =
      status <= static_cast<uint16_t>(Status::kWrongPeer) ? static_cast<Status>(status) : Status::kInternal;
  reader.u16("reserved");
  const uint32_t text_bytes = reader.u32("text_bytes");
  prefix.map_epoch = reader.u64("map_epoch");
  prefix.text = reader.text(text_bytes, "text");
  return prefix;
}

}  // namespace kvstore::wire
