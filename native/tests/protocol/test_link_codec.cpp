// The messages of links against the golden vectors that the Python codec is tested against too (tests/vectors/).
#include <cstring>

#include "check.hpp"
#include "protocol/link_codec.hpp"
#include "protocol/vectors.hpp"

using namespace kvstore;
using testing::vector_of;

namespace {

// As the vectors hold them: ADD of three entries; with `both`, then REMOVE of one in another namespace.
std::vector<uint8_t> groups(bool both) {
  uint8_t fps[48];
  for (int i = 0; i < 48; ++i) fps[i] = static_cast<uint8_t>(i * 7);
  wire::Writer out;
  out.u8(1).zeros(3).u32(3);
  for (uint8_t i = 0; i < 8; ++i) out.u8(i);
  out.raw(fps, 48).u32(10).u32(20).u32(30);
  if (both) {
    out.u8(2).zeros(3).u32(1);
    for (uint8_t i = 8; i-- > 0;) out.u8(i);
    out.raw(fps, 16).u32(0);
  }
  return out.buffer();
}

LinkToken token() {
  LinkToken out;
  for (uint8_t i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(16 + i);
  return out;
}

}  // namespace

TEST(what_a_segment_says_is_the_vectors_byte_by_byte) {
  const auto check = [](const char* name, const std::vector<uint8_t>& frame) {
    const auto v = vector_of(name, "request");
    if (frame != v.frame) testing::fail(__FILE__, __LINE__, name);
  };
  const auto id = [](const char* name) { return vector_of(name, "request").request_id; };
  std::vector<uint8_t> out;
  write_link_frame(out, id("link"), token());
  check("link", out);
  out.clear();
  write_journal_frame(out, id("journal"), 41, 44, groups(true));
  check("journal", out);
  out.clear();
  write_inventory_frame(out, id("inventory"), 44, true, false, groups(false));
  check("inventory", out);
  out.clear();
  write_inventory_frame(out, id("inventory_last"), uint64_t{1} << 40, false, true, {});
  check("inventory_last", out);
  out.clear();
  write_heartbeat_frame(out, id("heartbeat"), {uint64_t{1} << 40, 12345, 1 << 20, 2, 3, uint64_t{1} << 33});
  check("heartbeat", out);
  out.clear();
  write_heartbeat_frame(out, id("heartbeat_limits"),
                        {1, 2, 3, 4, 5, 6, {{uint64_t{1} << 40, uint64_t{1} << 41, 7}, {0, 1024, 0}}});
  check("heartbeat_limits", out);
}

TEST(what_a_master_says_is_read_as_the_vectors_have_it) {
  const auto ack = vector_of("ack", "notice");
  CHECK(!ack.is_reply());
  CHECK_EQ(read_ack(ack.body()).durable_seq, uint64_t{44});
  CHECK_EQ(read_ack(ack.body()).taken, uint64_t{3});
  const auto refused = vector_of("entries_refused", "notice");
  const EntriesRefusedMessage message = read_entries_refused(refused.body());
  CHECK_EQ(message.last_seq, uint64_t{44});
  CHECK_EQ(message.entries, 2u);
  CHECK_EQ(std::string(message.reason), std::string("zu groß"));
  for (const auto* v : {&ack, &refused}) {
    for (size_t size = 0; size + wire::kHeaderBytes < v->frame.size(); ++size) {
      const wire::Reader cut(v->frame.data() + wire::kHeaderBytes, size);
      if (v == &ack)
        CHECK_THROWS(read_ack(cut), wire::WireError);
      else
        CHECK_THROWS(read_entries_refused(cut), wire::WireError);
    }
  }
}

TEST_MAIN()
