// Framed connections and their pool against peers that stall, lie, or go away.
#include "check.hpp"
#include "client/client_test_peers.hpp"
#include "client/connection/connection_pool.hpp"
#include "client/connection/frame_connection.hpp"
#include "client/connection/get_stripe.hpp"
#include "client/connection/tcp_connect.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

constexpr int64_t kLateMsMax = 100;

void wait_for_end(int fd) {
  uint8_t sink[4096];
  while (::recv(fd, sink, sizeof(sink), 0) > 0) {
  }
}

NetStatus exchange(uint16_t port, const Deadline& deadline, std::vector<uint8_t>* payload = nullptr,
                   Op op = Op::kGet) {
  ClientSocket socket;
  NetStatus status = connect_tcp("127.0.0.1", port, deadline, &socket);
  if (status != NetStatus::kOk) return status;
  FrameConnection connection(std::move(socket));
  status = connection.hello({"token", "name"}, kAnyPeer, deadline);
  if (status != NetStatus::kOk) return status;
  uint32_t id = 0;
  const uint8_t body[8] = {};
  status = connection.send_request(op, body, sizeof(body), 0, deadline, &id);
  FrameReply reply;
  if (status == NetStatus::kOk) status = connection.receive_reply(op, id, 8, deadline, &reply);
  if (status != NetStatus::kOk || payload == nullptr) return status;
  payload->resize(reply.payload_bytes);
  iovec iov{payload->data(), payload->size()};
  return connection.receive_payload(&iov, 1, deadline);
}

std::vector<uint8_t> good_reply(const Request& request, uint64_t payload_bytes = 0) {
  wire::Writer fields;
  fields.u64(42);
  return reply_frame(request, Status::kOk, fields, payload_bytes);
}

// Serves HELLO, then answers one request by `bytes` and stays silent.
FrameServer answering(std::function<std::vector<uint8_t>(const Request&)> bytes) {
  return FrameServer([bytes](int fd) {
    Request request;
    if (!answer_hello(fd) || !read_request(fd, &request)) return;
    const std::vector<uint8_t> frame = bytes(request);
    write_all(fd, frame.data(), frame.size());
    wait_for_end(fd);
  });
}

void check_times_out(FrameServer& server, std::vector<uint8_t>* payload = nullptr) {
  const auto start = Deadline::Clock::now();
  CHECK(exchange(server.port(), Deadline::after_ms(150), payload) == NetStatus::kTimeout);
  const int64_t took_ms = elapsed_ms(start);
  CHECK(took_ms >= 149 && took_ms <= 150 + kLateMsMax);
}

}  // namespace

TEST(a_refusal_of_pages_that_carries_bytes_still_gives_every_entry_a_status) {
  FrameServer server = answering([](const Request& request) {
    std::vector<uint8_t> frame = reply_frame(request, Status::kUnavailable, wire::Writer(), 8);
    frame.resize(frame.size() + 8);
    return frame;
  });
  const Deadline deadline = Deadline::after_ms(5000);
  ClientSocket socket;
  CHECK(connect_tcp("127.0.0.1", server.port(), deadline, &socket) == NetStatus::kOk);
  FrameConnection connection(std::move(socket));
  CHECK(connection.hello({"token", "name"}, kAnyPeer, deadline) == NetStatus::kOk);
  const PageHash hash{};
  KeyBlock keys;
  keys.shard_count = keys.key_count = 1;
  keys.shards = kWholeShard.data();
  keys.hashes = hash.data();
  uint8_t page[8], status = 77;
  const Pieces pieces = Pieces::from_pointers({reinterpret_cast<uint64_t>(page)}, {sizeof(page)}, 1);
  TransportBatch batch;
  batch.keys = &keys;
  batch.entries = {0};
  batch.statuses = &status;
  batch.memory = &pieces;
  const std::vector<EntryBlock> blocks = make_blocks(batch.entries, 1);
  const std::vector<EntryRun> runs{{&blocks[0], 0, 1, sizeof(page)}};
  ClientCounters counters;
  Count moved;
  CHECK(GetStripe(connection, runs, batch, deadline, counters, moved).run() == NetStatus::kProtocol);
  CHECK_EQ(status, static_cast<uint8_t>(Status::kUnavailable));
}

TEST(a_reply_and_its_payload_arrive_also_in_single_bytes) {
  FrameServer server([](int fd) {
    Request request;
    if (!answer_hello(fd) || !read_request(fd, &request)) return;
    std::vector<uint8_t> frame = good_reply(request, 5);
    for (const char c : std::string("hello")) frame.push_back(static_cast<uint8_t>(c));
    for (const uint8_t byte : frame) write_all(fd, &byte, 1);
    wait_for_end(fd);
  });
  std::vector<uint8_t> payload;
  CHECK(exchange(server.port(), Deadline::after_ms(5000), &payload) == NetStatus::kOk);
  CHECK(std::string(payload.begin(), payload.end()) == "hello");
}

TEST(a_peer_that_stalls_at_any_stage_costs_the_deadline_and_no_more) {
  FrameServer accept_only([](int fd) { wait_for_end(fd); });
  check_times_out(accept_only);
  FrameServer silent_after_hello([](int fd) {
    if (answer_hello(fd)) wait_for_end(fd);
  });
  check_times_out(silent_after_hello);
  FrameServer mid_header = answering([](const Request& r) {
    auto frame = good_reply(r);
    frame.resize(10);
    return frame;
  });
  check_times_out(mid_header);
  FrameServer mid_body = answering([](const Request& r) {
    auto frame = good_reply(r);
    frame.resize(wire::kHeaderBytes + 9);
    return frame;
  });
  check_times_out(mid_body);
  FrameServer mid_payload = answering([](const Request& r) {
    auto frame = good_reply(r, 1000);
    frame.resize(frame.size() + 500);
    return frame;
  });
  std::vector<uint8_t> payload;
  check_times_out(mid_payload, &payload);
}

TEST(a_peer_that_breaks_the_protocol_is_told_apart) {
  const auto status_of = [](std::function<std::vector<uint8_t>(const Request&)> bytes, Op op = Op::kGet) {
    FrameServer server = answering(std::move(bytes));
    return exchange(server.port(), Deadline::after_ms(2000), nullptr, op);
  };
  CHECK(status_of([](const Request& r) { return good_reply(r); }) == NetStatus::kOk);
  CHECK(status_of([](const Request&) { return std::vector<uint8_t>(64, 0xAB); }) == NetStatus::kProtocol);
  CHECK(status_of([](Request r) { return ++r.header.request_id, good_reply(r); }) == NetStatus::kProtocol);
  CHECK(status_of([](Request r) { return ++r.header.op, good_reply(r); }) == NetStatus::kProtocol);
  CHECK(status_of([](Request r) { return ++r.header.version, good_reply(r); }) == NetStatus::kProtocol);
  const auto with_body_bytes = [](uint32_t n) {
    return [n](const Request& r) {
      auto frame = good_reply(r);
      std::memcpy(frame.data() + 12, &n, sizeof(n));
      return frame;
    };
  };
  CHECK(status_of(with_body_bytes(0xFFFFFFFF)) == NetStatus::kProtocol);
  CHECK(status_of(with_body_bytes(8u << 20)) == NetStatus::kProtocol);  // allowed, but no answer to this
  CHECK(status_of(with_body_bytes(3)) == NetStatus::kProtocol);
  CHECK(status_of([](const Request& r) {
          auto frame = good_reply(r);
          const uint32_t text_bytes = 1000;
          std::memcpy(frame.data() + wire::kHeaderBytes + 4, &text_bytes, sizeof(text_bytes));
          return frame;
        }) == NetStatus::kProtocol);
  CHECK(status_of([](const Request& r) { return good_reply(r, 5); }, Op::kPin) == NetStatus::kProtocol);
  CHECK(status_of([](const Request& r) { return good_reply(r, 3ull << 30); }) == NetStatus::kProtocol);
}

TEST(a_wrong_pool_is_refused_even_if_the_peer_does_not_mind) {
  PeerId mine, theirs;
  mine.fill(1), theirs.fill(2);
  FrameServer server([&](int fd) {
    if (answer_hello(fd, theirs)) wait_for_end(fd);
  });
  ClientCounters counters;
  for (const PeerId& expected : {theirs, kAnyPeer, mine}) {
    ConnectionPool pool({"127.0.0.1", server.port(), ""}, {}, expected, 2, 1000, counters);
    ConnectionPool::Lease lease;
    const NetStatus status = pool.acquire(Deadline::after_ms(2000), &lease);
    CHECK(status == (expected == mine ? NetStatus::kRefused : NetStatus::kOk));
  }
  CHECK_EQ(counters.value(Counter::kRefusedHellos), 1u);
}

TEST(nobody_listening_is_known_at_once) {
  uint16_t port = 0;
  {
    FrameServer gone([](int) {});
    port = gone.port();
  }
  const auto start = Deadline::Clock::now();
  CHECK(exchange(port, Deadline::after_ms(2000)) == NetStatus::kUnreachable);
  CHECK(elapsed_ms(start) < 1000);
}

TEST(a_pool_bounds_its_connections_reuses_good_ones_and_drops_bad_ones) {
  FrameServer server([](int fd) {
    if (answer_hello(fd)) wait_for_end(fd);
  });
  ClientCounters counters;
  ConnectionPool pool({"127.0.0.1", server.port(), ""}, {}, kAnyPeer, 2, 1000, counters);
  {
    std::vector<ConnectionPool::Lease> leases;
    CHECK(pool.acquire_several(5, Deadline::after_ms(2000), &leases) == NetStatus::kOk);
    CHECK_EQ(leases.size(), 2u);
    ConnectionPool::Lease more;
    const auto start = Deadline::Clock::now();
    CHECK(pool.acquire(Deadline::after_ms(50), &more) == NetStatus::kTimeout);
    CHECK(elapsed_ms(start) <= 50 + kLateMsMax);
    for (auto& lease : leases) lease.keep();
  }
  {
    ConnectionPool::Lease lease;
    CHECK(pool.acquire(Deadline::after_ms(2000), &lease) == NetStatus::kOk);
    CHECK_EQ(server.connections(), 2);
  }  // not kept: it failed, and with it the idle one
  ConnectionPool::Lease lease;
  CHECK(pool.acquire(Deadline::after_ms(2000), &lease) == NetStatus::kOk);
  CHECK_EQ(server.connections(), 3);
  CHECK_EQ(counters.value(Counter::kReconnects), 1u);
}

TEST(an_idle_connection_that_its_peer_closed_is_replaced_without_a_failure) {
  std::atomic<int> served{0};
  FrameServer server([&](int fd) {
    if (!answer_hello(fd)) return;
    if (served++ > 0) wait_for_end(fd);
  });
  ClientCounters counters;
  ConnectionPool pool({"127.0.0.1", server.port(), ""}, {}, kAnyPeer, 2, 1000, counters);
  {
    ConnectionPool::Lease lease;
    CHECK(pool.acquire(Deadline::after_ms(2000), &lease) == NetStatus::kOk);
    const Deadline until = Deadline::after_ms(2000);
    while (lease->peer_open() && !until.expired()) ::poll(nullptr, 0, 1);
    lease.keep();
  }
  ConnectionPool::Lease lease;
  CHECK(pool.acquire(Deadline::after_ms(2000), &lease) == NetStatus::kOk);
  CHECK(lease->idle_and_open());
  CHECK_EQ(server.connections(), 2);
}

TEST_MAIN()
