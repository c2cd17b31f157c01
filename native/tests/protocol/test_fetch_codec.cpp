// FETCH against the golden vectors that the Python codec is tested against too (tests/vectors/).
#include "check.hpp"
#include "protocol/fetch_codec.hpp"
#include "protocol/vectors.hpp"

using namespace kvstore;
using testing::vector_of;

namespace {

fetch_codec::FetchRequest request_of_vectors() {
  const auto v = vector_of("fetch", "request");
  wire::Reader body = v.body();
  return fetch_codec::read_request(body);
}

// A reply as it lies in the vector, behind the prefix; `frame` outlives it.
FrameReply reply_of(const testing::Vector& v) {
  FrameReply reply;
  reply.payload_bytes = v.payload_bytes;
  const size_t before = wire::kHeaderBytes + wire::kReplyPrefixBytes + v.text_bytes;
  reply.fields = v.frame.data() + before;
  reply.fields_bytes = v.frame.size() - before;
  return reply;
}

template <typename Work>
bool is_refused(Work&& work) {
  try {
    work();
  } catch (const wire::WireError&) {
    return true;
  }
  return false;
}

}  // namespace

TEST(a_request_is_the_vector_byte_by_byte) {
  const auto v = vector_of("fetch", "request");
  const fetch_codec::FetchRequest request = request_of_vectors();
  CHECK_EQ(request.bytes_max, uint64_t{4} << 20);
  CHECK_EQ(request.fingerprints.size(), size_t{3});
  wire::Writer again;
  fetch_codec::write_request(again, request);
  CHECK(std::memcmp(again.data(), v.frame.data() + wire::kHeaderBytes, again.size()) == 0);
  CHECK_EQ(again.size() + wire::kHeaderBytes, v.frame.size());
}

TEST(a_reply_is_the_vector_byte_by_byte) {
  const auto v = vector_of("fetch", "reply");
  const FrameReply reply = reply_of(v);
  const auto objects = fetch_codec::read_reply(reply, request_of_vectors());
  CHECK(objects[0].status == wire::Status::kOk && objects[0].intent == wire::Intent::kRetain);
  CHECK_EQ(objects[0].length, 4096u);
  CHECK_EQ(objects[0].digest, 0xDEADBEEFu);
  CHECK_EQ(objects[0].depth, 9u);
  CHECK_EQ(objects[0].text, std::string("k\xc3\xa4se"));
  CHECK(objects[1].status == wire::Status::kTooLarge && objects[2].status == wire::Status::kMiss);
  wire::Writer again;
  fetch_codec::write_reply(again, objects);
  CHECK_EQ(again.size(), reply.fields_bytes);
  CHECK(std::memcmp(again.data(), reply.fields, again.size()) == 0);
}

TEST(a_reply_that_can_not_be_an_answer_is_refused) {
  const auto v = vector_of("fetch", "reply");
  const fetch_codec::FetchRequest asked = request_of_vectors();
  const auto refused = [&](const fetch_codec::FetchRequest& request, const FrameReply& reply) {
    return is_refused([&] { (void)fetch_codec::read_reply(reply, request); });
  };
  CHECK(!refused(asked, reply_of(v)));
  auto fewer = asked;
  fewer.fingerprints.pop_back();
  CHECK(refused(fewer, reply_of(v)));
  auto others = asked;
  others.fingerprints[0].lo ^= 1;  // the key that came is not the one that was asked for
  CHECK(refused(others, reply_of(v)));
  FrameReply shorter = reply_of(v);
  --shorter.payload_bytes;
  CHECK(refused(asked, shorter));
  for (size_t cut = 0; cut < reply_of(v).fields_bytes; ++cut) {
    FrameReply part = reply_of(v);
    part.fields_bytes = cut;
    CHECK(refused(asked, part));
  }
}

TEST(a_request_of_nothing_or_too_much_is_refused) {
  for (const size_t count : {size_t{0}, size_t{wire::kFetchEntriesMax} + 1}) {
    fetch_codec::FetchRequest request;
    request.fingerprints.resize(count);
    wire::Writer body;
    fetch_codec::write_request(body, request);
    CHECK(is_refused([&] {
      wire::Reader reader(body.data(), body.size());
      (void)fetch_codec::read_request(reader);
    }));
  }
}

TEST_MAIN()
