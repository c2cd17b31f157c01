// The messages that set RDMA up, against the golden vectors and against what no honest peer sends.
#include <fstream>
#include <iterator>
#include <sstream>

#include "check.hpp"
#include "transports/ucx/core/codec.hpp"
#include "transports/ucx/core/mode.hpp"

using namespace kvstore;
using namespace kvstore::rdma_codec;
using wire::Status;

namespace {

// The body of a golden vector; of a reply without its prefix.
std::vector<uint8_t> vector_body(const std::string& name, const std::string& kind) {
  std::ifstream in(std::string(KVSTORE_VECTORS_DIR) + "/protocol_v2.txt");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::vector<std::string> fields((std::istream_iterator<std::string>(words)), {});
    if (fields[0] != name || fields[1] != kind) continue;
    std::vector<uint8_t> body;
    const std::string& hex = fields.back();
    for (size_t i = 2 * (wire::kHeaderBytes + (kind == "reply" ? wire::kReplyPrefixBytes : 0));
         i < hex.size(); i += 2)
      body.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
    return body;
  }
  testing::fail(__FILE__, __LINE__, "no vector " + name);
  return {};
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

FrameReply reply_of(const std::vector<uint8_t>& fields) {
  FrameReply reply;
  reply.status = Status::kOk;
  reply.fields = fields.data();
  reply.fields_bytes = fields.size();
  return reply;
}

template <typename Read>
Status refusal(const std::vector<uint8_t>& body, Read&& read) {
  // On the heap and exactly as long as it is, so that a sanitizer sees a read past the end.
  const std::vector<uint8_t> exact(body);
  try {
    read(exact);
  } catch (const wire::WireError& e) {
    return e.status;
  }
  return Status::kOk;
}

const auto kConnect = [](const std::vector<uint8_t>& b) {
  wire::Reader reader(b.data(), b.size());
  read_connect(reader);
};
const auto kRegister = [](const std::vector<uint8_t>& b) {
  wire::Reader reader(b.data(), b.size());
  read_register(reader);
};
const auto kConnectReply = [](const std::vector<uint8_t>& b) { read_connect_reply(reply_of(b)); };

RemotePool pool() {
  RemotePool p;
  p.geometry = {uint64_t{1} << 31, 0, 1024, 128, {}};
  for (size_t i = 0; i < p.geometry.pool_id.size(); ++i) p.geometry.pool_id[i] = static_cast<uint8_t>(16 + i);
  p.map_address = 0x7F0000200000;
  p.worker_address = bytes_of("the segment's worker");
  p.key = bytes_of("the pool's key");
  return p;
}

std::vector<uint8_t> connect_reply(const RemotePool& p) {
  wire::Writer w;
  write_connect_reply(w, p);
  return w.buffer();
}

}  // namespace

TEST(messages_are_the_vectors_and_read_back) {
  wire::Writer connect;
  write_connect(connect, bytes_of("the client's worker"));
  CHECK(connect.buffer() == vector_body("rdma_connect", "request"));
  wire::Reader connected(connect.data(), connect.size());
  CHECK(read_connect(connected) == bytes_of("the client's worker"));

  wire::Writer registering;
  write_register(registering, 0x7F0000001000, uint64_t{1} << 33, bytes_of("a key"));
  CHECK(registering.buffer() == vector_body("rdma_register", "request"));
  wire::Reader registered(registering.data(), registering.size());
  const Registration r = read_register(registered);
  CHECK(r.address == 0x7F0000001000 && r.bytes == uint64_t{1} << 33 && r.key == bytes_of("a key"));

  const std::vector<uint8_t> reply = connect_reply(pool());
  CHECK(reply == vector_body("rdma_connect", "reply"));
  const RemotePool read = read_connect_reply(reply_of(reply));
  CHECK(read.geometry.pool_id == pool().geometry.pool_id);
  CHECK_EQ(read.geometry.map_bytes, uint64_t{1} << 31);
  CHECK_EQ(read.map_address, 0x7F0000200000u);
  CHECK(read.worker_address == pool().worker_address && read.key == pool().key);
}

TEST(a_message_that_is_cut_short_anywhere_is_refused) {
  const auto cut = [](const std::vector<uint8_t>& whole, auto&& read) {
    CHECK_EQ(refusal(whole, read), Status::kOk);
    for (size_t size = 0; size < whole.size(); ++size)
      CHECK_EQ(refusal({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}, read),
               Status::kBadRequest);
  };
  cut(vector_body("rdma_connect", "request"), kConnect);
  cut(vector_body("rdma_register", "request"), kRegister);
  cut(vector_body("rdma_connect", "reply"), kConnectReply);
}

TEST(a_packed_address_or_key_that_was_damaged_on_its_way_is_refused) {
  const auto damaged = [](std::vector<uint8_t> body, auto&& read) {
    body.back() ^= 1;
    return refusal(body, read);
  };
  CHECK_EQ(damaged(vector_body("rdma_connect", "request"), kConnect), Status::kDigestMismatch);
  CHECK_EQ(damaged(vector_body("rdma_register", "request"), kRegister), Status::kDigestMismatch);
  CHECK_EQ(damaged(vector_body("rdma_connect", "reply"), kConnectReply), Status::kDigestMismatch);
}

TEST(sizes_over_their_caps_and_memory_that_is_none_are_refused) {
  wire::Writer large;
  write_connect(large, std::vector<uint8_t>(kAddressBytesMax + 1));
  CHECK_EQ(refusal(large.buffer(), kConnect), Status::kTooLarge);
  wire::Writer empty;
  write_connect(empty, {});
  CHECK_EQ(refusal(empty.buffer(), kConnect), Status::kBadRequest);

  const auto registering = [](uint64_t address, uint64_t bytes, size_t key_bytes) {
    wire::Writer w;
    write_register(w, address, bytes, std::vector<uint8_t>(key_bytes));
    return refusal(w.buffer(), kRegister);
  };
  CHECK_EQ(registering(4096, 4096, 1), Status::kOk);
  CHECK_EQ(registering(4096, 4096, kKeyBytesMax + 1), Status::kTooLarge);
  CHECK_EQ(registering(4096, 4096, 0), Status::kBadRequest);
  CHECK_EQ(registering(0, 4096, 1), Status::kBadRequest);
  CHECK_EQ(registering(4096, 0, 1), Status::kBadRequest);
  CHECK_EQ(registering(UINT64_MAX - 4095, 4097, 1), Status::kBadRequest);

  RemotePool p = pool();
  p.map_address = UINT64_MAX - 4096;
  CHECK_EQ(refusal(connect_reply(p), kConnectReply), Status::kBadRequest);
  p = pool();
  p.geometry.slot_count = 1u << 30;  // a table larger than the pool
  CHECK_EQ(refusal(connect_reply(p), kConnectReply), Status::kBadRequest);
  p = pool();
  p.key.assign(kKeyBytesMax + 1, 0);
  CHECK_EQ(refusal(connect_reply(p), kConnectReply), Status::kTooLarge);
}

TEST(buffers_have_ids_of_their_own_and_a_cap) {
  RemoteBuffers buffers;
  const uint32_t first = buffers.add(4096, 100);
  CHECK(first != 0);
  CHECK_EQ(buffers.at(first).bytes, 100u);
  buffers.remove(first);
  const auto refused = [&](auto&& call) {
    try {
      call();
    } catch (const wire::WireError& e) {
      return e.status;
    }
    return Status::kOk;
  };
  CHECK_EQ(refused([&] { buffers.at(first); }), Status::kBadRequest);
  CHECK_EQ(refused([&] { buffers.remove(first); }), Status::kBadRequest);
  for (size_t i = 0; i < RemoteBuffers::kBuffersMax; ++i) CHECK(buffers.add(4096, 1) != first);
  CHECK_EQ(refused([&] { buffers.add(4096, 1); }), Status::kTooLarge);
}

TEST(a_mode_is_one_of_three_words) {
  CHECK(rdma_mode("off") == RdmaMode::kOff && rdma_mode("auto") == RdmaMode::kAuto &&
        rdma_mode("required") == RdmaMode::kRequired);
  bool refused = false;
  try {
    rdma_mode("yes");
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

TEST_MAIN()
