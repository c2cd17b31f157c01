// A get against replicas that stall, lie, die or no longer have the page.
#include "client/scripted_segment.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

// A second copy of the batch: put by a client that knows only that segment.
void copy_to(TestSegment& segment, const Fixture& f, Batch& b) {
  TestDirectory elsewhere;
  elsewhere.set_segment(segment.record());
  PageClient writer({{"127.0.0.1", elsewhere.port(), ""}}, tcp_only());
  const auto opened = writer.open_namespace(f.kIdentity, "m", Deadline::after_ms(kPlentyMs));
  writer.put(opened.second, b.keys, *b.pieces, {}, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(b.all(Status::kOk));
}

}  // namespace

TEST(a_get_after_an_exists_asks_no_master) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(16 * 5000);
  Batch b(16, 1, 5000, 1, 5, memory.data());
  f.put(b);
  f.exists(b, 5000);
  CHECK(b.all(Status::kOk));
  const int lookups = f.directory.requests(Op::kLookup);
  f.get(b);
  CHECK(b.all(Status::kOk));
  CHECK_EQ(f.directory.requests(Op::kLookup), lookups);
}

TEST(an_object_of_another_length_is_never_copied) {
  for (const bool same_host : {false, true}) {
    PageClientOptions options = client_options();
    options.transport_options["same_host"] = same_host ? "true" : "false";
    Fixture f(options);
    TestSegment segment(f.directory, 0, 1, same_host ? socket_path() : "");
    f.open();
    std::vector<uint8_t> memory(5000, 1), other(5001, 2);
    Batch b(1, 1, 5000, 1, 7, memory.data()), longer(1, 1, 5001, 1, 7, other.data());
    f.put(b);
    CHECK(b.all(Status::kOk));
    f.get(longer);
    CHECK(longer.all(Status::kLengthMismatch));
    CHECK(std::all_of(other.begin(), other.end(), [](uint8_t x) { return x == 2; }));
    f.put(longer);
    CHECK(longer.none_ok());
  }
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
  CHECK_EQ(segment.requests(Op::kGet), 4);
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
  CHECK_EQ(segment.requests(Op::kSuspect), 1);
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
  copy_to(other, f, b);
  doomed.reset();
  f.get(in);
  CHECK(in.all(Status::kOk));
  CHECK(back == memory);
}

TEST(a_holder_that_hangs_leaves_the_other_one_time_within_the_same_deadline) {
  for (const bool hung_is_first : {true, false}) {
    Fixture f(slow_back_off());
    TestSegment good(f.directory, hung_is_first ? 1 : 0, 1);
    f.open();
    std::vector<uint8_t> memory(8 * 5000), back(8 * 5000);
    fill(memory.data(), memory.size(), 41);
    Batch b(8, 1, 5000, 1, 41, memory.data()), in(8, 1, 5000, 1, 41, back.data());
    copy_to(good, f, b);
    ScriptedSegment hung(f.directory, hung_is_first ? 0 : 1, [](int, const Request&) {});
    announce(f, b, hung_is_first ? 0 : 1);
    announce(f, b, hung_is_first ? 1 : 0);
    for (int call = 0; call < 2; ++call) {  // what was found is remembered with both of its holders
      const auto start = Deadline::Clock::now();
      f.get(in, kPlentyMs);
      CHECK(in.all(Status::kOk));
      CHECK(back == memory);
      CHECK(elapsed_ms(start) < kPlentyMs / 4);
    }
    CHECK(hung.requests(Op::kGet) <= 2);  // a connection each, and none once it is known to hang
  }
}

TEST(a_pin_at_a_holder_that_hangs_is_had_of_the_other_one_within_the_same_deadline) {
  Fixture f(slow_back_off());
  TestSegment good(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(8 * 5000);
  Batch b(8, 1, 5000, 1, 42, memory.data());
  copy_to(good, f, b);
  ScriptedSegment hung(f.directory, 1, [](int, const Request&) {});
  announce(f, b, 1);
  announce(f, b, 0);
  f.exists(b, 1000, 2000);
  CHECK(b.all(Status::kOk));
}

TEST(the_last_holder_that_is_left_may_take_all_of_the_deadline) {
  Fixture f(slow_back_off());
  auto dead = std::make_unique<TestSegment>(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(5000);
  fill(memory.data(), memory.size(), 43);
  Batch b(1, 1, 5000, 1, 43, memory.data());
  copy_to(*dead, f, b);
  const uint32_t digest = crc32c(0, memory.data(), memory.size());
  ScriptedSegment slow(f.directory, 1, [&](int fd, const Request& r) {
    ::poll(nullptr, 0, 400);  // longer than one of several holders may be silent
    const auto frame = ok_get_reply(r, memory, digest);
    write_all(fd, frame.data(), frame.size());
  });
  announce(f, b, 1);
  dead.reset();
  f.get(b, kPlentyMs);
  CHECK(b.all(Status::kOk));
}

TEST(a_page_that_moved_since_it_was_located_is_found_by_asking_the_directory_again) {
  Fixture f(tcp_only());
  auto first = std::make_unique<TestSegment>(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(8 * 5000), back(8 * 5000);
  fill(memory.data(), memory.size(), 23);
  Batch b(8, 1, 5000, 1, 23, memory.data()), in(8, 1, 5000, 1, 23, back.data());
  f.put(b);
  f.exists(in, 5000);
  CHECK(in.all(Status::kOk));
  TestSegment second(f.directory, 1, 2);
  copy_to(second, f, b);
  first.reset();
  f.directory.forget(0);
  const int lookups = f.directory.requests(Op::kLookup);
  f.get(in);
  CHECK(in.all(Status::kOk));
  CHECK(back == memory);
  CHECK_EQ(f.directory.requests(Op::kLookup), lookups + 1);
}

TEST(a_get_from_a_cleared_namespace_asks_once_more_in_the_new_one) {
  Fixture f(tcp_only());
  TestSegment segment(f.directory, 0, 1);
  f.open();
  PageClient other({{"127.0.0.1", f.directory.port(), ""}}, tcp_only());
  const int handle = other.open_namespace(f.kIdentity, "m", Deadline::after_ms(kPlentyMs)).second;
  CHECK(other.bump_namespace(handle, Deadline::after_ms(kPlentyMs)) == Status::kOk);
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 24, memory.data());
  other.put(handle, b.keys, *b.pieces, {}, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(b.all(Status::kOk));
  f.get(b);
  CHECK(b.all(Status::kOk));
  CHECK_EQ(f.count(Counter::kStaleNamespace), 1u);
}

TEST(an_entry_that_can_not_be_got_into_its_memory_fails_alone) {
  Fixture f(tcp_only());
  TestSegment segment(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 25, memory.data());
  f.put(b);
  const auto at = reinterpret_cast<uint64_t>(memory.data());
  const Pieces odd = Pieces::from_pointers({at, at, 0, at + 5000}, {5000, 0, 5000, 5000}, 1);
  f.client.get(f.handle, b.keys, odd, Deadline::after_ms(kPlentyMs), b.statuses.data());
  const auto bad = static_cast<uint8_t>(Status::kBadRequest);
  CHECK(b.statuses == std::vector<uint8_t>({0, bad, bad, 0}));
  CHECK_EQ(f.count(Counter::kGetBytes), 10000u);
}

TEST_MAIN()
