// The whole client against masters and segments that hang, lie, die or move.
#include "base/digest.hpp"
#include "client/page_client_fixture.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

// A segment that says it has one object, and answers a GET as told.
struct ScriptedSegment {
  ScriptedSegment(Fixture& f, Batch& b, std::function<void(int fd, const Request&)> on_get)
      : server([this, on_get](int fd) {
          PeerId pool;
          pool.fill(9);
          if (!answer_hello(fd, pool)) return;
          Request request;
          while (read_request(fd, &request)) {
            if (request.op() == Op::kSuspect) ++suspects;
            if (request.op() == Op::kGet) ++gets;
            on_get(fd, request);
          }
        }) {
    SegmentRecord record;
    record.index = 0;
    record.state = wire::SegmentState::kLive;
    record.pool_id.fill(9);
    record.host = "127.0.0.1";
    record.tcp_port = server.port();
    f.directory.set_segment(record);
    b.keys.ns = f.client.namespace_state(f.handle).ns;
    wire::Writer group;
    const auto fps = b.keys.fingerprints();
    group.u8(1).zeros(3).u32(static_cast<uint32_t>(fps.size())).raw(b.keys.ns.data(), 8);
    group.raw(fps.data(), fps.size() * kFingerprintBytes);
    for (size_t i = 0; i < fps.size(); ++i) group.u32(static_cast<uint32_t>(b.pieces->entry_bytes(i)));
    f.directory.index().apply(0, group.data(), group.size());
  }
  std::atomic<int> suspects{0}, gets{0};
  FrameServer server;
};

std::vector<uint8_t> ok_get_reply(const Request& request, const std::vector<uint8_t>& bytes,
                                  uint32_t digest) {
  wire::Writer fields;
  fields.u32(1)
      .u32(0)
      .u8(0)
      .u8(kDigestCrc32c)
      .u16(0)
      .u32(static_cast<uint32_t>(bytes.size()))
      .u32(digest)
      .u32(0);
  std::vector<uint8_t> frame = reply_frame(request, Status::kOk, fields, bytes.size());
  frame.insert(frame.end(), bytes.begin(), bytes.end());
  return frame;
}

}  // namespace

TEST(a_put_whose_commit_does_not_come_is_not_acked_and_keeps_its_deadline) {
  PageClientOptions options = tcp_only();
  options.run_bytes = 65536;
  Fixture f(options);
  TestSegment segment(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(64 * 40000);
  Batch b(64, 1, 40000, 1, 10, memory.data());
  segment.hold_commits(true);
  const auto start = Deadline::Clock::now();
  f.put(b, 300);
  CHECK(elapsed_ms(start) <= 300 + kLateMsMax);
  CHECK(b.none_ok());
  segment.hold_commits(false);
}

TEST(a_segment_that_stalls_anywhere_costs_one_deadline_and_then_nothing) {
  const std::function<void(int, const Request&)> kStalls[] = {
      [](int, const Request&) {},
      [](int fd, const Request& r) {
        const auto frame = ok_get_reply(r, std::vector<uint8_t>(5000, 3), 0);
        write_all(fd, frame.data(), 11);
      },
      [](int fd, const Request& r) {
        const auto frame = ok_get_reply(r, std::vector<uint8_t>(5000, 3), 0);
        write_all(fd, frame.data(), frame.size() - 1000);
      },
  };
  for (const auto& stall : kStalls) {
    Fixture f(slow_back_off());
    f.open();
    std::vector<uint8_t> memory(5000);
    Batch b(1, 1, 5000, 1, 11, memory.data());
    ScriptedSegment segment(f, b, stall);
    auto start = Deadline::Clock::now();
    f.get(b, 200);
    CHECK(elapsed_ms(start) <= 200 + kLateMsMax);
    CHECK(b.all(Status::kTimeout));
    start = Deadline::Clock::now();
    f.get(b, 2000);
    CHECK(elapsed_ms(start) < 1000);
    CHECK(b.none_ok());
    CHECK_EQ(f.count(Counter::kTimeouts), 1u);
    CHECK(f.count(Counter::kBreakerRefusals) >= 1);
  }
}

TEST(a_probe_of_a_hung_segment_is_short_however_long_the_call_may_take) {
  PageClientOptions options = tcp_only();
  options.backoff_ms_min = options.backoff_ms_max = 1;
  Fixture f(options);
  f.open();
  std::vector<uint8_t> memory(5000);
  Batch b(1, 1, 5000, 1, 22, memory.data());
  ScriptedSegment segment(f, b, [](int, const Request&) {});
  f.get(b, 100);
  for (int probe = 0; probe < 3; ++probe) {
    ::poll(nullptr, 0, 5);
    const auto start = Deadline::Clock::now();
    f.get(b, 10000);
    CHECK(elapsed_ms(start) <= kProbeStallMs + 500);
    CHECK(b.none_ok());
  }
  CHECK_EQ(segment.gets.load(), 4);
  CHECK_EQ(f.count(Counter::kBreakerOpen), 4u);
}

TEST(nothing_is_written_into_the_callers_memory_after_return) {
  Fixture f(tcp_only());
  f.open();
  std::vector<uint8_t> memory(5000, 1);
  Batch b(1, 1, 5000, 1, 12, memory.data());
  std::atomic<bool> go{false}, sent{false};
  ScriptedSegment segment(f, b, [&](int fd, const Request& r) {
    const auto frame = ok_get_reply(r, std::vector<uint8_t>(5000, 0xEE), 0);
    write_all(fd, frame.data(), frame.size() - 3000);
    while (!go) ::poll(nullptr, 0, 1);
    write_all(fd, frame.data() + frame.size() - 3000, 3000);
    sent = true;
  });
  f.get(b, 100);
  CHECK(b.all(Status::kTimeout));
  std::fill(memory.begin(), memory.end(), 0x55);
  go = true;
  const Deadline until = Deadline::after_ms(5000);
  while (!sent && !until.expired()) ::poll(nullptr, 0, 1);
  ::poll(nullptr, 0, 20);
  CHECK(std::all_of(memory.begin(), memory.end(), [](uint8_t x) { return x == 0x55; }));
}

TEST(bytes_without_their_digest_are_a_counted_miss_and_their_segment_is_told) {
  Fixture f(tcp_only());
  f.open();
  std::vector<uint8_t> memory(5000);
  Batch b(1, 1, 5000, 1, 13, memory.data());
  ScriptedSegment segment(f, b, [&](int fd, const Request& r) {
    if (r.op() == Op::kGet) {
      const std::vector<uint8_t> bytes(5000, 3);
      const auto frame = ok_get_reply(r, bytes, crc32c(0, bytes.data(), bytes.size()) ^ 1);
      write_all(fd, frame.data(), frame.size());
    } else {
      wire::Writer fields;
      fields.u32(1).u32(0).u8(static_cast<uint8_t>(Status::kDigestMismatch));
      send_reply(fd, r, Status::kOk, fields);
    }
  });
  f.get(b);
  CHECK(b.all(Status::kDigestMismatch));
  CHECK_EQ(f.count(Counter::kDigestMismatches), 1u);
  CHECK_EQ(segment.suspects.load(), 1);
  CHECK_EQ(f.count(Counter::kSuspectsConfirmed), 1u);
}

TEST(a_segment_that_breaks_the_protocol_is_left_and_its_bytes_are_not_taken) {
  for (int lie = 0; lie < 4; ++lie) {
    Fixture f(tcp_only());
    f.open();
    std::vector<uint8_t> memory(5000, 1);
    Batch b(1, 1, 5000, 1, 14, memory.data());
    ScriptedSegment segment(f, b, [&](int fd, const Request& r) {
      std::vector<uint8_t> frame = ok_get_reply(r, std::vector<uint8_t>(lie == 0 ? 5001 : 5000, 3), 0);
      if (lie == 1) frame[wire::kHeaderBytes + wire::kReplyPrefixBytes] = 2;  // count
      if (lie == 2) frame[16] ^= 1;                                           // payload_bytes
      if (lie == 3) frame.assign(frame.size(), 0xCD);
      write_all(fd, frame.data(), frame.size());
    });
    f.get(b);
    CHECK(b.none_ok());
    CHECK_EQ(f.count(Counter::kProtocolErrors), 1u);
    CHECK(std::all_of(memory.begin(), memory.end(), [](uint8_t x) { return x == 1; }));
  }
}

TEST(the_other_replica_serves_what_a_dead_segment_can_not) {
  Fixture f(tcp_only());
  auto doomed = std::make_unique<TestSegment>(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(32 * 5000), back(32 * 5000);
  fill(memory.data(), memory.size(), 15);
  Batch b(32, 1, 5000, 1, 15, memory.data()), in(32, 1, 5000, 1, 15, back.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  TestSegment other(f.directory, 1, 2);
  {  // the second copy: put by a client that knows only the second segment
    TestDirectory elsewhere;
    elsewhere.set_segment(other.record());
    PageClient writer({{"127.0.0.1", elsewhere.port(), ""}}, tcp_only());
    const auto opened = writer.open_namespace("{\"model\":\"m\"}", "m", Deadline::after_ms(kPlentyMs));
    writer.put(opened.second, b.keys, *b.pieces, {}, Deadline::after_ms(kPlentyMs), b.statuses.data());
    CHECK(b.all(Status::kOk));
  }
  doomed.reset();
  f.get(in);
  CHECK(in.all(Status::kOk));
  CHECK(back == memory);
}

TEST(a_put_goes_to_another_segment_when_its_own_is_dead) {
  Fixture f(tcp_only());
  auto doomed = std::make_unique<TestSegment>(f.directory, 0, 1);
  TestSegment other(f.directory, 1, 2);
  f.open();
  doomed.reset();
  std::vector<uint8_t> memory(32 * 5000);
  Batch b(32, 1, 5000, 1, 16, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  f.exists(b, 1000);
  CHECK(b.all(Status::kOk));
}

TEST(a_segment_that_comes_back_elsewhere_is_used_again_without_being_told) {
  Fixture f(tcp_only());
  auto first = std::make_unique<TestSegment>(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 17, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  first.reset();
  f.get(b, 500);
  CHECK(b.none_ok());
  f.directory.index().drop_segment(0);
  TestSegment second(f.directory, 0, 2);
  const Deadline until = Deadline::after_ms(kPlentyMs);
  do {
    f.put(b, 500);
  } while (!b.all(Status::kOk) && !until.expired());
  CHECK(b.all(Status::kOk));
}

TEST(a_dead_or_hung_master_is_replaced_by_the_next_one) {
  TestDirectory good;
  TestSegment segment(good, 0, 1);
  FrameServer hung([](int fd) {
    uint8_t sink[4096];
    while (::recv(fd, sink, sizeof(sink), 0) > 0) {
    }
  });
  uint16_t dead_port = 0;
  {
    FrameServer gone([](int) {});
    dead_port = gone.port();
  }
  PageClient client(
      {{"127.0.0.1", dead_port, ""}, {"127.0.0.1", hung.port(), ""}, {"127.0.0.1", good.port(), ""}},
      client_options());
  const auto start = Deadline::Clock::now();
  CHECK(client.open_namespace("{}", "", Deadline::after_ms(2000)).first == Status::kOk);
  CHECK(elapsed_ms(start) <= 2000 + kLateMsMax);
  std::vector<uint8_t> memory(5000);
  Batch b(1, 1, 5000, 1, 18, memory.data());
  client.put(0, b.keys, *b.pieces, {}, Deadline::after_ms(2000), b.statuses.data());
  CHECK(b.all(Status::kOk));
}

TEST(without_any_master_every_call_answers_in_time_and_soon_at_once) {
  FrameServer hung([](int fd) {
    uint8_t sink[4096];
    while (::recv(fd, sink, sizeof(sink), 0) > 0) {
    }
  });
  PageClient client({{"127.0.0.1", hung.port(), ""}}, slow_back_off());
  auto start = Deadline::Clock::now();
  CHECK(client.open_namespace("{}", "", Deadline::after_ms(150)).first != Status::kOk);
  CHECK(elapsed_ms(start) <= 150 + kLateMsMax);
  std::vector<uint8_t> memory(5000);
  Batch b(1, 1, 5000, 1, 19, memory.data());
  start = Deadline::Clock::now();
  client.get(0, b.keys, *b.pieces, Deadline::after_ms(5000), b.statuses.data());
  CHECK(elapsed_ms(start) < 1000);
  CHECK(b.none_ok());
  CHECK_EQ(client.counters().value(Counter::kTimeouts), 1u);
}

TEST(a_strangers_bytes_end_no_more_than_its_connection_to_a_test_peer) {
  Fixture f(tcp_only());
  TestSegment segment(f.directory, 0, 1);
  f.open();
  for (const std::string& bytes : {std::string(64, 'G'), std::string(4096, '\0'), std::string()}) {
    const int stranger = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(f.directory.port());
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_EQ(::connect(stranger, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    CHECK(write_all(stranger, bytes.data(), bytes.size()));
    ::shutdown(stranger, SHUT_WR);
    char answer;
    CHECK(::recv(stranger, &answer, 1, 0) <= 0);
    ::close(stranger);
  }
  std::vector<uint8_t> source(4096, 1);
  Batch b(1, 1, source.size(), 1, 7, source.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
}

TEST_MAIN()
