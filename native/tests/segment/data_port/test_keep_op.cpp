// KEEP and the intent of a PUT, over a connection.
#include <string>
#include <vector>

#include "check.hpp"
#include "segment/data_port/server.hpp"
#include "segment/data_port_client.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

constexpr uint32_t kLength = 8192;

struct Served {
  explicit Served(double retained_namespace_fraction_max = 0.25) {
    SegmentStoreOptions options = small_store(1u << 20);
    options.retained_fraction_max = 0.5;
    options.retained_namespace_fraction_max = retained_namespace_fraction_max;
    store = std::make_shared<SegmentStore>(options);
    DataServerOptions tcp;
    tcp.tcp_host = "127.0.0.1";
    server = std::make_unique<DataServer>(store, tcp);
  }
  uint64_t stat(const char* name) const { return store->stats().at(name); }
  std::shared_ptr<SegmentStore> store;
  std::unique_ptr<DataServer> server;
};

std::vector<uint8_t> keep_frame(const std::vector<std::string>& names, const wire::KeepWish& wish) {
  const Keys keys(names);
  wire::Writer body;
  body.keep_wish(wish);
  write_key_block(body, keys.block());
  return DataClient::frame(Op::kKeep, body);
}

// A PUT of content(name, kLength) for each name, with an intent.
std::vector<uint8_t> put_with_intent(const std::vector<std::string>& names, uint8_t intent, uint32_t ttl_ms) {
  std::vector<uint8_t> payload;
  wire::Writer digests;
  for (const std::string& name : names) {
    const std::vector<uint8_t> bytes = content(name, kLength);
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    digests.u32(crc32c(0, bytes.data(), bytes.size()));
  }
  payload.insert(payload.end(), digests.data(), digests.data() + digests.size());
  const Keys keys(names);
  wire::Writer body = put_body(keys, std::vector<uint32_t>(names.size(), kLength));
  body.buffer()[1] |= wire::kPutHasIntent;
  body.u8(intent).zeros(3).u32(ttl_ms);
  return DataClient::frame(Op::kPut, body, payload);
}

// What follows the statuses: the journal number and how many are not kept.
uint32_t not_kept(const DataReply& reply, size_t entries) {
  CHECK_EQ(reply.fields.size(), 8 + entries + 16);
  uint32_t value = 0;
  std::memcpy(&value, reply.fields.data() + 8 + entries + 8, sizeof(value));
  return value;
}

}  // namespace

TEST(keep_answers_for_each_entry_and_the_store_does_it) {
  Served s(1.0 / 64);  // two objects
  DataClient client(s.server->tcp_port());
  client.call(put_frame({"a", "b", "c"}, kLength));
  const DataReply kept = client.call(keep_frame({"a", "x", "b", "c"}, {wire::Intent::kRetain, 60'000}));
  CHECK_EQ(kept.status, Status::kOk);
  CHECK(kept.statuses() == std::vector<uint8_t>({0, static_cast<uint8_t>(Status::kMiss), 0,
                                                 static_cast<uint8_t>(Status::kNoSpace)}));
  CHECK_EQ(s.stat("retained_objects"), uint64_t{2});
  client.call(keep_frame({"a"}, {wire::Intent::kDemote, 0}));
  CHECK_EQ(s.stat("retained_objects"), uint64_t{1});
  CHECK_EQ(s.stat("demoted_objects"), uint64_t{1});
  client.call(keep_frame({"a", "b"}, {wire::Intent::kNormal, 0}));
  CHECK_EQ(s.stat("retained_objects") + s.stat("demoted_objects"), uint64_t{0});
}

TEST(a_put_with_an_intent_keeps_what_it_stores_and_what_was_there) {
  Served s;
  DataClient client(s.server->tcp_port());
  client.call(put_frame({"old"}, kLength));
  const DataReply reply = client.call(put_with_intent({"old", "new"}, 1, 60'000));
  CHECK(reply.statuses() == std::vector<uint8_t>({static_cast<uint8_t>(Status::kExists), 0}));
  CHECK_EQ(not_kept(reply, 2), 0u);
  CHECK_EQ(s.stat("retained_objects"), uint64_t{2});
}

TEST(a_put_over_the_budget_is_stored_and_told_that_it_is_not_retained) {
  Served s(1.0 / 64);
  DataClient client(s.server->tcp_port());
  const std::vector<std::string> chain = {"0", "1", "2", "3", "4"};
  const DataReply reply = client.call(put_with_intent(chain, 1, 60'000));
  CHECK(reply.statuses() == std::vector<uint8_t>(5, 0));
  CHECK_EQ(not_kept(reply, 5), 3u);
  CHECK_EQ(s.stat("retained_objects"), uint64_t{2});
  CHECK_EQ(s.stat("retentions_refused"), uint64_t{3});
  for (const std::string& name : chain) CHECK_EQ(get_one(*s.store, name), Status::kOk);
}

TEST(an_entry_of_a_put_that_is_not_stored_is_not_kept_either) {
  Served s;
  DataClient client(s.server->tcp_port());
  std::vector<uint8_t> frame = put_with_intent({"a"}, 1, 60'000);
  frame.back() ^= 1;  // the digest
  const DataReply reply = client.call(frame);
  CHECK(reply.statuses() == std::vector<uint8_t>({static_cast<uint8_t>(Status::kDigestMismatch)}));
  CHECK_EQ(not_kept(reply, 1), 0u);
  CHECK_EQ(s.stat("retained_objects"), uint64_t{0});
}

TEST(an_intent_that_is_none_and_a_body_that_is_cut_are_refused_and_the_connection_goes_on) {
  Served s;
  DataClient client(s.server->tcp_port());
  const Keys keys({"a"});
  wire::Writer body;
  body.u8(3).zeros(3).u32(0);
  write_key_block(body, keys.block());
  CHECK_EQ(client.call(DataClient::frame(Op::kKeep, body)).status, Status::kBadRequest);
  wire::Writer cut;
  cut.u8(1).zeros(2);
  CHECK_EQ(client.call(DataClient::frame(Op::kKeep, cut)).status, Status::kBadRequest);
  CHECK_EQ(client.call(keep_frame({"a"}, {wire::Intent::kRetain, 1})).status, Status::kOk);
}

TEST_MAIN()
