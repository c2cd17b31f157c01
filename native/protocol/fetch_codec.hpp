// FETCH of the data port (docs/protocol.md section 6): whole objects by fingerprint, with all that another segment needs to
// keep them. No IO; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/keys.hpp"
#include "protocol/reply.hpp"
#include "protocol/wire.hpp"

namespace kvstore::fetch_codec {

struct FetchRequest {
  NamespaceId ns{};
  uint64_t bytes_max = 0;  // of the objects that are sent; the first one is sent whatever its length
  std::vector<Fingerprint> fingerprints;
};
void write_request(wire::Writer& body, const FetchRequest& request);
// Throws wire::WireError when it is short, over a cap, or asks for nothing.
FetchRequest read_request(wire::Reader& reader);

// What is said of one fingerprint. OK: its bytes are in the payload. TOO_LARGE: it is there, and over bytes_max with those before
// it. Of any other status nothing but the status is said.
struct FetchedObject {
  wire::Status status = wire::Status::kMiss;
  wire::Intent intent = wire::Intent::kNormal;
  uint8_t digest_alg = 0;
  Key key{};
  uint32_t length = 0;
  uint32_t digest = 0;
  uint32_t depth = 0;
  std::string text;
};
constexpr size_t kObjectFieldsBytes = 64;
// What a reply's fields come to at most, for so many objects.
constexpr size_t fields_bytes_max(size_t objects) {
  return 8 + objects * (kObjectFieldsBytes + wire::kTextBytesMax);
}
void write_reply(wire::Writer& body, const std::vector<FetchedObject>& objects);
// Throws wire::WireError when the reply is not a possible answer: another count, a key that has not the fingerprint that was
// asked for, a payload of other than the bytes of the OK ones, a cap exceeded.
std::vector<FetchedObject> read_reply(const FrameReply& reply, const FetchRequest& request);

}  // namespace kvstore::fetch_codec
