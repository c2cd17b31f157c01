#include "protocol/fetch_codec.hpp"

#include <algorithm>

namespace kvstore::fetch_codec {

using wire::Status;
using wire::WireError;

void write_request(wire::Writer& body, const FetchRequest& request) {
  body.raw(request.ns.data(), request.ns.size()).u64(request.bytes_max);
  body.u32(static_cast<uint32_t>(request.fingerprints.size())).u32(0);
  body.raw(request.fingerprints.data(), request.fingerprints.size() * sizeof(Fingerprint));
}

FetchRequest read_request(wire::Reader& reader) {
  FetchRequest request;
  std::memcpy(request.ns.data(), reader.bytes(kNamespaceBytes, "namespace"), kNamespaceBytes);
  request.bytes_max = reader.u64("bytes_max");
  const uint32_t count = reader.u32("count");
  reader.u32("reserved");
  if (count == 0) throw WireError(Status::kBadRequest, "a FETCH asks for one object at least");
  if (count > wire::kFetchEntriesMax)
    throw WireError(Status::kTooLarge, std::to_string(count) + " objects are over the cap of " +
                                           std::to_string(wire::kFetchEntriesMax) +
                                           " of a FETCH: cut the batch");
  const uint8_t* fingerprints = reader.bytes(size_t{count} * kFingerprintBytes, "fingerprints");
  request.fingerprints.resize(count);
  std::memcpy(request.fingerprints.data(), fingerprints, size_t{count} * kFingerprintBytes);
  return request;
}

void write_reply(wire::Writer& body, const std::vector<FetchedObject>& objects) {
  body.u32(static_cast<uint32_t>(objects.size())).u32(0);
  for (const FetchedObject& o : objects)
    body.u8(static_cast<uint8_t>(o.status))
        .u8(o.digest_alg)
        .u8(static_cast<uint8_t>(o.intent))
        .u8(0)
        .u16(static_cast<uint16_t>(o.text.size()))
        .u16(o.key.pool)
        .u32(o.length)
        .u32(o.digest)
        .u32(o.depth)
        .raw(o.key.shard.data(), kShardBytes)
        .raw(o.key.hash.data(), kHashBytes);
  for (const FetchedObject& o : objects) body.raw(o.text.data(), o.text.size());
}

std::vector<FetchedObject> read_reply(const FrameReply& reply, const FetchRequest& request) {
  wire::Reader reader = reply.reader();
  wire::check_count(reader, request.fingerprints.size());
  reader.u32("reserved");
  std::vector<FetchedObject> objects(request.fingerprints.size());
  std::vector<uint16_t> text_bytes(objects.size());
  uint64_t payload_bytes = 0;
  const Key* salted = nullptr;  // whose salt it is: most are of one pool and shard
  Fingerprint salt;
  for (size_t i = 0; i < objects.size(); ++i) {
    FetchedObject& o = objects[i];
    o.status = static_cast<Status>(reader.u8("status"));
    o.digest_alg = reader.u8("digest_alg");
    o.intent = static_cast<wire::Intent>(reader.u8("intent"));
    reader.u8("reserved");
    text_bytes[i] = reader.u16("text_bytes");
    o.key.ns = request.ns;
    o.key.pool = reader.u16("pool");
    o.length = reader.u32("length");
    o.digest = reader.u32("digest");
    o.depth = reader.u32("depth");
    std::memcpy(o.key.shard.data(), reader.bytes(kShardBytes, "shard"), kShardBytes);
    std::memcpy(o.key.hash.data(), reader.bytes(kHashBytes, "hash"), kHashBytes);
    if (text_bytes[i] > wire::kTextBytesMax) throw WireError(Status::kTooLarge, "a key text over its cap");
    if (o.status != Status::kOk) continue;
    if (salted == nullptr || salted->pool != o.key.pool || salted->shard != o.key.shard) {
      salt = fingerprint_salt(o.key.ns, o.key.pool, o.key.shard);
      salted = &o.key;
    }
    if (fingerprint(salt, o.key.hash.data()) != request.fingerprints[i])
      throw WireError(Status::kBadRequest, "an object of another fingerprint than was asked for");
    if (o.length > wire::kObjectBytesMax) throw WireError(Status::kTooLarge, "an object over its cap");
    if (o.intent > wire::Intent::kDemote) o.intent = wire::Intent::kNormal;  // of a later release
    payload_bytes += o.length;
  }
  for (size_t i = 0; i < objects.size(); ++i) objects[i].text = reader.text(text_bytes[i], "text");
  if (payload_bytes != reply.payload_bytes)
    throw WireError(Status::kBadRequest, "a payload of other than the bytes of its objects");
  return objects;
}

}  // namespace kvstore::fetch_codec
