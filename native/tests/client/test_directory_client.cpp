// A client against masters that hang or are dead.
#include "client/page_client_fixture.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

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
