// Frame headers and the bodies of the data port's requests: read whole or refused by a WireError, and what was read writes to the
// same bytes again.
#include "fuzz.hpp"
#include "protocol/put_request.hpp"
#include "segment/data_port/put_transfer.hpp"
#include "transports/ucx/core/codec.hpp"
#include "write_key_block.hpp"

namespace kvstore::fuzz {
namespace {

using wire::Op;

void check_block(const KeyBlock& block) {
  HOLDS(block.shard_count >= 1 && block.shard_count <= wire::kShardsMax);
  HOLDS(block.key_count >= 1 && block.key_count <= wire::kKeysMax);
  HOLDS(block.entry_count() <= wire::kEntriesMax);
  wire::Writer written;
  testing::write_key_block(written, block);
  wire::Reader reader(written.data(), written.size());
  const KeyBlock again = read_key_block(reader);
  HOLDS(reader.left() == 0 && again.key(block.entry_count() - 1) == block.key(block.entry_count() - 1));
}

void check_wish(const wire::KeepWish& wish) {
  HOLDS(wish.intent <= wire::Intent::kDemote);
  wire::Writer written;
  written.keep_wish(wish);
  HOLDS(written.size() == wire::kKeepWishBytes);
  wire::Reader again(written.data(), written.size());
  const wire::KeepWish same = wire::read_keep_wish(again);
  HOLDS(same.intent == wish.intent && same.ttl_ms == wish.ttl_ms);
}

void check_put(const PutRequest& put) {
  check_block(put.block);
  uint64_t total = 0;
  for (uint32_t i = 0; i < put.entry_count(); ++i) {
    HOLDS(put.length(i) <= wire::kObjectBytesMax && put.text(i).size() <= wire::kTextBytesMax);
    total += put.length(i) + put.depth(i) * uint64_t{0};
  }
  HOLDS(total == put.total_bytes && total + put.entry_count() * 4 <= wire::kPayloadBytesMax);
  HOLDS(put.fingerprints.size() == put.entry_count());
  check_wish(put.keep);
  HOLDS(put.has_intent || put.keep.intent == wire::Intent::kNormal);
}

void check_pieces(const PullPieces& pieces, const PutRequest& put) {
  const size_t total = size_t{pieces.per_entry} * put.entry_count();
  HOLDS(total <= wire::kPullPiecesMax);
  uint64_t bytes = 0;
  for (size_t p = 0; p < total; ++p) bytes += pieces.size(p) + pieces.offset(p) * 0;
  HOLDS(bytes == put.total_bytes);
  if (pieces.digests != nullptr)
    for (uint32_t i = 0; i < put.entry_count(); ++i) (void)pieces.digest(i);
}

void read_body(uint8_t op, wire::Reader body) {
  if (op == static_cast<uint8_t>(rdma_codec::kOpConnect)) {
    const std::vector<uint8_t> address = rdma_codec::read_connect(body);
    wire::Writer written;
    rdma_codec::write_connect(written, address);
    wire::Reader again(written.data(), written.size());
    HOLDS(rdma_codec::read_connect(again) == address);
    return;
  }
  if (op == static_cast<uint8_t>(rdma_codec::kOpRegister)) {
    const rdma_codec::Registration made = rdma_codec::read_register(body);
    HOLDS(made.bytes > 0 && made.address + made.bytes > made.address);
    wire::Writer written;
    rdma_codec::write_register(written, made.address, made.bytes, made.key);
    wire::Reader again(written.data(), written.size());
    HOLDS(rdma_codec::read_register(again).key == made.key);
    return;
  }
  if (op == static_cast<uint8_t>(Op::kPut) || op == static_cast<uint8_t>(Op::kPull)) {
    const PutRequest put = read_put_request(body);
    check_put(put);
    if (op == static_cast<uint8_t>(Op::kPull))
      for (const bool with_digests : {false, true}) {
        wire::Reader rest = body;
        check_pieces(read_pull_pieces(rest, put, with_digests), put);
      }
    return;
  }
  if (op == static_cast<uint8_t>(Op::kKeep))
    check_wish(wire::read_keep_wish(body));
  else
    body.u64("what stands before the keys");
  const KeyBlock block = read_key_block(body);
  check_block(block);
  if (op == static_cast<uint8_t>(Op::kGet)) body.bytes(size_t{block.entry_count()} * 4, "expected_length");
}

}  // namespace

std::vector<Seed> seeds() { return golden_seeds("request"); }

int fuzz_one(const uint8_t* data, size_t size) {
  if (size < wire::kHeaderBytes) return 0;
  try {
    const wire::Header header = wire::decode_header(data);
    uint8_t again[wire::kHeaderBytes];
    wire::encode_header(header, again);
    HOLDS(std::memcmp(data, again, sizeof(again)) == 0);
    HOLDS(header.body_bytes <= wire::kBodyBytesMax && header.payload_bytes <= wire::kPayloadBytesMax);
    read_body(header.op, wire::Reader(data + wire::kHeaderBytes, size - wire::kHeaderBytes));
  } catch (const wire::WireError& refused) {
    HOLDS(refused.what()[0] != '\0' && refused.status != wire::Status::kOk);
  }
  return 0;
}

}  // namespace kvstore::fuzz
