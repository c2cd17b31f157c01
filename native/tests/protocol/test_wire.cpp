// The C++ codec against the golden vectors that the Python codec is tested against too (tests/vectors/).
#include "check.hpp"
#include "protocol/keys.hpp"
#include "protocol/put_request.hpp"
#include "protocol/vectors.hpp"
#include "protocol/wire.hpp"
#include "write_key_block.hpp"

using namespace kvstore;
using testing::Vector;
using testing::vector_of;
using testing::vectors;
using testing::write_key_block;

namespace {

bool same(const wire::Writer& writer, const Vector& v) {
  return writer.size() + wire::kHeaderBytes == v.frame.size() &&
         std::memcmp(writer.data(), v.frame.data() + wire::kHeaderBytes, writer.size()) == 0;
}

}  // namespace

TEST(every_header_decodes_and_encodes_to_the_vector) {
  CHECK(vectors().size() >= 38);
  for (const Vector& v : vectors()) {
    CHECK(v.frame.size() >= wire::kHeaderBytes);
    const wire::Header h = wire::decode_header(v.frame.data());
    CHECK_EQ(uint32_t{h.op}, v.op);
    CHECK_EQ(uint32_t{h.flags}, v.flags);
    CHECK_EQ(h.request_id, v.request_id);
    CHECK_EQ(h.body_bytes, v.body_bytes);
    CHECK_EQ(h.payload_bytes, v.payload_bytes);
    CHECK_EQ(h.is_reply(), v.is_reply());
    CHECK_EQ(v.frame.size(), wire::kHeaderBytes + h.body_bytes);
    uint8_t again[wire::kHeaderBytes];
    wire::encode_header(h, again);
    CHECK(std::memcmp(again, v.frame.data(), sizeof again) == 0);
  }
}

TEST(every_reply_prefix_decodes_and_encodes_to_the_vector) {
  for (const Vector& v : vectors()) {
    if (!v.is_reply()) continue;
    wire::Reader reader = v.body();
    const wire::ReplyPrefix prefix = wire::read_reply_prefix(reader);
    CHECK_EQ(static_cast<uint32_t>(prefix.status), v.status);
    CHECK_EQ(prefix.map_epoch, v.map_epoch);
    CHECK_EQ(prefix.text.size(), size_t{v.text_bytes});
    wire::Writer again;
    again.reply_prefix(prefix.status, prefix.text, prefix.map_epoch);
    CHECK(std::memcmp(again.data(), v.frame.data() + wire::kHeaderBytes, again.size()) == 0);
  }
}

TEST(key_blocks_decode_and_encode_to_the_vectors) {
  const std::pair<const char*, size_t> offsets[] = {{"pin", 8},    {"locate", 8},          {"get", 8},
                                                    {"remove", 8}, {"put_with_depths", 8}, {"suspect", 0}};
  for (const auto& [name, offset] : offsets) {
    const Vector v = vector_of(name, "request");
    wire::Reader reader = v.body();
    reader.bytes(offset, "head");
    const size_t before = reader.left();
    const KeyBlock block = read_key_block(reader);
    CHECK_EQ(block.pool, uint16_t{5});
    CHECK_EQ(block.shard_count, 2u);
    CHECK_EQ(block.key_count, 3u);
    CHECK(block.ns == (NamespaceId{0, 1, 2, 3, 4, 5, 6, 7}));
    CHECK(block.shard(0) == kWholeShard);
    CHECK_EQ(block.hash(4)[0], uint8_t{0xC3});
    wire::Writer again;
    write_key_block(again, block);
    CHECK_EQ(again.size(), before - reader.left());
    CHECK(std::memcmp(again.data(), v.frame.data() + wire::kHeaderBytes + offset, again.size()) == 0);
  }
}

TEST(requests_written_field_by_field_are_the_vectors) {
  NamespaceId ns{0, 1, 2, 3, 4, 5, 6, 7};
  uint8_t peer[16], fps[48];
  for (uint8_t i = 0; i < 16; ++i) peer[i] = i;
  for (int i = 0; i < 48; ++i) fps[i] = static_cast<uint8_t>(i * 7);
  wire::Writer hello;
  hello.u8(2).u8(2).u8(static_cast<uint8_t>(wire::Role::kClient)).u8(0).u16(6).u16(8).raw(peer, 16);
  hello.raw("s3cret", 6).raw("engine-0", 8);
  CHECK(same(hello, vector_of("hello", "request")));
  wire::Writer exists;
  exists.raw(ns.data(), 8).u32(3).u32(0).raw(fps, 48);
  CHECK(same(exists, vector_of("exists", "request")));
  wire::Writer lookup;
  lookup.raw(ns.data(), 8).u32(3).u8(2).zeros(3).raw(fps, 48);
  CHECK(same(lookup, vector_of("lookup", "request")));
  wire::Writer place;
  place.raw(ns.data(), 8).u32(3).u32(1).u32(100).u32(200).u32(1u << 30).raw(fps, 48);
  CHECK(same(place, vector_of("place", "request")));
  wire::Writer commit;
  commit.u64((7ull << 32) + 9).u32(900).u32(0);
  CHECK(same(commit, vector_of("commit", "request")));
}

TEST(a_wish_decodes_and_encodes_to_the_vectors_and_no_other_intent_is_one) {
  const Vector v = vector_of("keep", "request");
  wire::Reader reader = v.body();
  const wire::KeepWish wish = wire::read_keep_wish(reader);
  CHECK(wish.intent == wire::Intent::kRetain);
  CHECK_EQ(wish.ttl_ms, 3'600'000u);
  const KeyBlock block = read_key_block(reader);
  wire::Writer again;
  again.keep_wish(wish);
  write_key_block(again, block);
  CHECK(same(again, v));
  const Vector demotion = vector_of("keep_demote", "request");
  wire::Reader demote = demotion.body();
  CHECK(wire::read_keep_wish(demote).intent == wire::Intent::kDemote);
  const uint8_t none[wire::kKeepWishBytes] = {3};
  wire::Reader bad(none, sizeof(none));
  CHECK_THROWS(wire::read_keep_wish(bad), wire::WireError);
}

TEST(the_intent_of_a_put_is_read_where_it_has_one) {
  for (const char* name : {"put_with_intent", "pull_with_intent"}) {
    const Vector v = vector_of(name, "request");
    wire::Reader reader = v.body();
    const PutRequest put = read_put_request(reader);
    CHECK(put.has_intent && put.keep.intent == wire::Intent::kRetain);
    CHECK_EQ(put.keep.ttl_ms, 60'000u);
    CHECK_EQ(put.depth(5), 9u);
    CHECK_EQ(reader.left() > 0, std::string(name) == "pull_with_intent");
  }
  const Vector texts = vector_of("put_with_texts_and_intent", "request");
  wire::Reader reader = texts.body();
  const PutRequest put = read_put_request(reader);
  CHECK(put.keep.intent == wire::Intent::kDemote);
  CHECK(put.text(2) == "k\xC3\xA4se");
  const Vector without = vector_of("put_with_depths", "request");
  wire::Reader plain = without.body();
  CHECK(!read_put_request(plain).has_intent);
}

TEST(headers_that_are_not_ours_are_refused) {
  wire::Header h;
  uint8_t bytes[wire::kHeaderBytes];
  const auto status_of = [&]() -> int {
    wire::encode_header(h, bytes);
    try {
      wire::decode_header(bytes);
      return -1;
    } catch (const wire::WireError& e) {
      return static_cast<int>(e.status);
    }
  };
  CHECK_EQ(status_of(), -1);
  h.body_bytes = wire::kBodyBytesMax;
  h.payload_bytes = wire::kPayloadBytesMax;
  CHECK_EQ(status_of(), -1);
  h.body_bytes = wire::kBodyBytesMax + 1;
  CHECK_EQ(status_of(), static_cast<int>(wire::Status::kTooLarge));
  h.body_bytes = 0;
  h.payload_bytes = wire::kPayloadBytesMax + 1;
  CHECK_EQ(status_of(), static_cast<int>(wire::Status::kTooLarge));
  h.payload_bytes = 0;
  h.magic = 0x31535648;
  CHECK_EQ(status_of(), static_cast<int>(wire::Status::kBadRequest));
}

TEST(a_reader_never_reads_past_the_body) {
  const uint8_t data[5] = {1, 2, 3, 4, 5};
  wire::Reader reader(data, sizeof data);
  CHECK_EQ(reader.u32("four"), 0x04030201u);
  CHECK_THROWS(reader.u16("two"), wire::WireError);
  CHECK_EQ(reader.u8("one"), uint8_t{5});
  CHECK_THROWS(reader.u8("none"), wire::WireError);
  CHECK_THROWS(reader.bytes(SIZE_MAX, "all"), wire::WireError);
}

TEST_MAIN()
