// A put against segments that are dead, full or gone while it runs.
#include <mutex>

#include "client/scripted_segment.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

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

TEST(a_put_tries_a_segment_that_failed_no_second_time_however_short_its_back_off) {
  PageClientOptions options = tcp_only();
  options.backoff_ms_min = options.backoff_ms_max = 1;
  Fixture f(options);
  ScriptedSegment broken(f.directory, 0, [](int fd, const Request& r) {
    skip_payload(fd, r);
    ::shutdown(fd, SHUT_RDWR);
  });
  TestSegment other(f.directory, 1, 2);
  f.open();
  std::vector<uint8_t> memory(8 * 5000);
  for (unsigned round = 0; round < 5; ++round) {
    Batch b(8, 1, 5000, 1, 40 + round, memory.data());
    f.put(b);
    CHECK(b.all(Status::kOk));
  }
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
  f.directory.forget(0);
  TestSegment second(f.directory, 0, 2);
  const Deadline until = Deadline::after_ms(kPlentyMs);
  do {
    f.put(b, 500);
  } while (!b.all(Status::kOk) && !until.expired());
  CHECK(b.all(Status::kOk));
}

TEST(a_put_that_finds_no_space_at_a_segment_goes_to_another_and_so_do_those_after_it) {
  Fixture f(tcp_only());
  ScriptedSegment full(f.directory, 0, [](int fd, const Request& r) {
    skip_payload(fd, r);
    answer_put(fd, r, Status::kNoSpace);
  });
  TestSegment other(f.directory, 1, 2);
  f.open();
  std::vector<uint8_t> memory(32 * 5000);
  Batch b(32, 1, 5000, 1, 31, memory.data()), next(32, 1, 5000, 1, 32, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  CHECK_EQ(full.requests(Op::kPut), 1);
  f.put(next);
  CHECK(next.all(Status::kOk));
  CHECK_EQ(full.requests(Op::kPut), 1);
}

TEST(a_put_that_finds_no_space_anywhere_says_so) {
  Fixture f(tcp_only());
  const auto no_space = [](int fd, const Request& r) {
    skip_payload(fd, r);
    answer_put(fd, r, Status::kNoSpace);
  };
  ScriptedSegment one(f.directory, 0, no_space), two(f.directory, 1, no_space);
  f.open();
  std::vector<uint8_t> memory(8 * 5000);
  Batch b(8, 1, 5000, 1, 33, memory.data());
  f.put(b);
  CHECK(b.all(Status::kNoSpace));
  CHECK_EQ(one.requests(Op::kPut), 1);
  CHECK_EQ(two.requests(Op::kPut), 1);
  CHECK_EQ(f.count(Counter::kPutMisses), 8u);
}

TEST(a_put_at_a_hung_segment_ends_at_its_deadline_and_the_next_one_goes_elsewhere) {
  Fixture f(slow_back_off());
  ScriptedSegment hung(f.directory, 0, skip_payload);
  TestSegment other(f.directory, 1, 2);
  f.open();
  std::vector<uint8_t> memory(8 * 5000);
  Batch b(8, 1, 5000, 1, 34, memory.data());
  const auto start = Deadline::Clock::now();
  f.put(b, 200);
  CHECK(elapsed_ms(start) <= 200 + kLateMsMax);
  CHECK(b.all(Status::kTimeout));
  f.put(b);
  CHECK(b.all(Status::kOk));
}

TEST(a_put_into_a_cleared_namespace_stores_all_of_it_in_the_new_one) {
  Fixture f(tcp_only());
  TestSegment segment(f.directory, 0, 1);
  f.open();
  PageClient other({{"127.0.0.1", f.directory.port(), ""}}, tcp_only());
  const int handle = other.open_namespace(f.kIdentity, "m", Deadline::after_ms(kPlentyMs)).second;
  CHECK(other.bump_namespace(handle, Deadline::after_ms(kPlentyMs)) == Status::kOk);
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 35, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  CHECK_EQ(f.count(Counter::kStaleNamespace), 1u);
  other.get(handle, b.keys, *b.pieces, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(b.all(Status::kOk));
}

TEST(what_a_put_had_stored_at_a_segment_that_is_gone_before_it_ends_is_stored_again) {
  Fixture f(slow_back_off());
  TestSegment lost(f.directory, 0, 1);
  std::unique_ptr<TestSegment> successor;
  std::once_flag replaced;  // each of the client's connections gets here
  // Takes nothing, and breaks off once segment 0 has its half and has been replaced.
  ScriptedSegment broken(f.directory, 1, [&](int fd, const Request& r) {
    skip_payload(fd, r);
    std::call_once(replaced, [&] {
      const Deadline until = Deadline::after_ms(kPlentyMs);
      while (f.directory.index().segment_usage(0).entries < 4 && !until.expired()) ::poll(nullptr, 0, 1);
      f.directory.forget(0);
      successor = std::make_unique<TestSegment>(f.directory, 0, 7);
    });
    ::shutdown(fd, SHUT_RDWR);
  });
  f.open();
  constexpr size_t kBytes = 1u << 20;
  std::vector<uint8_t> memory(8 * kBytes);  // the directory gives 4 MiB to each segment
  Batch b(8, 1, kBytes, 1, 36, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  f.exists(b, 1000);
  CHECK(b.all(Status::kOk));
}

TEST(a_put_that_evicts_pages_of_its_own_does_not_call_them_stored) {
  PageClientOptions options = tcp_only();
  options.run_bytes = 65536;
  Fixture f(options);
  SegmentStoreOptions
      no_free_ahead;  // what the evictor takes once the put is over is no page of a put that lied
  no_free_ahead.free_ahead_bytes = 0;
  TestSegment small(f.directory, 0, 1, "", 2u << 20, {}, no_free_ahead);
  f.open();
  constexpr size_t kBytes = 32u << 10, kKeys = 128;
  std::vector<uint8_t> memory(kKeys * kBytes);
  Batch b(kKeys, 1, kBytes, 1, 37, memory.data()), found(kKeys, 1, kBytes, 1, 37, memory.data());
  f.put(b);
  f.exists(found, 1000);
  size_t stored = 0;
  for (size_t i = 0; i < kKeys; ++i) {
    stored += b.statuses[i] == 0;
    CHECK_EQ(b.statuses[i] == 0, found.statuses[i] == 0);
    if (b.statuses[i] != 0) CHECK_EQ(b.statuses[i], static_cast<uint8_t>(Status::kNoSpace));
  }
  CHECK(stored > 0 && stored < kKeys);
}

TEST(an_entry_that_can_not_be_stored_fails_alone) {
  Fixture f(tcp_only());
  TestSegment segment(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(4 * 5000);
  const auto at = reinterpret_cast<uint64_t>(memory.data());
  Batch b(4, 1, 5000, 1, 38, memory.data());
  const Pieces odd =
      Pieces::from_pointers({at, at, at, at + 5000}, {5000, 0, wire::kObjectBytesMax + 1ull, 5000}, 1);
  f.client.put(f.handle, b.keys, odd, {}, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(b.statuses == std::vector<uint8_t>({0, static_cast<uint8_t>(Status::kBadRequest),
                                            static_cast<uint8_t>(Status::kTooLarge), 0}));
  CHECK_EQ(f.count(Counter::kPutHits), 2u);
  CHECK_EQ(f.count(Counter::kPutFailures), 2u);

  Batch named(3, 1, 5000, 1, 39, memory.data());
  const std::string too_long(wire::kTextBytesMax + 1, 'x');
  const std::vector<std::string_view> texts = {"a", too_long, "c"};
  f.client.put(f.handle, named.keys, *named.pieces, {true, 0, &texts}, Deadline::after_ms(kPlentyMs),
               named.statuses.data());
  CHECK(named.statuses == std::vector<uint8_t>({0, static_cast<uint8_t>(Status::kTooLarge), 0}));
}

TEST_MAIN()
