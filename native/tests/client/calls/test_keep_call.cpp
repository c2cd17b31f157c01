// keep, and puts with an intent, at segments of this release and of an earlier one.
#include "client/scripted_segment.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

constexpr wire::KeepWish kRetain{wire::Intent::kRetain, 60'000};

void keep(Fixture& f, Batch& b, const wire::KeepWish& wish, int64_t ms = kPlentyMs) {
  f.client.keep(f.handle, b.keys, wish, Deadline::after_ms(ms), b.statuses.data());
}

void put_with(Fixture& f, Batch& b, const wire::KeepWish& wish) {
  PutOptions options;
  options.wish = wish;
  f.client.put(f.handle, b.keys, *b.pieces, options, Deadline::after_ms(kPlentyMs), b.statuses.data());
}

SegmentStoreOptions with_budget() {
  SegmentStoreOptions options;
  options.retained_fraction_max = options.retained_namespace_fraction_max = 0.5;
  return options;
}

// No cache of locations: each call asks the directory.
PageClientOptions forgetful() {
  PageClientOptions options = client_options();
  options.location_cache_entries = 0;
  return options;
}

}  // namespace

TEST(what_is_kept_is_kept_at_the_segments_that_have_it) {
  Fixture f;
  TestSegment one(f.directory, 0, 1, "", 64u << 20, {}, with_budget());
  TestSegment two(f.directory, 1, 2, "", 64u << 20, {}, with_budget());
  f.open();
  std::vector<uint8_t> memory(200 * 65536);
  Batch b(200, 1, 65536, 1, 3, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  keep(f, b, kRetain);
  CHECK(b.all(Status::kOk));
  const uint64_t at_one = one.store().stats().at("retained_objects"),
                 at_two = two.store().stats().at("retained_objects");
  CHECK_EQ(at_one + at_two, uint64_t{200});
  CHECK(at_one > 0 && at_two > 0);
  CHECK_EQ(f.count(Counter::kKeepHits), 200u);
  keep(f, b, {wire::Intent::kDemote, 0});
  CHECK(b.all(Status::kOk));
  CHECK_EQ(one.store().stats().at("demoted_objects") + two.store().stats().at("demoted_objects"),
           uint64_t{200});
}

TEST(another_client_that_knows_no_location_asks_the_directory) {
  Fixture f(forgetful());
  TestSegment segment(f.directory, 0, 1, "", 64u << 20, {}, with_budget());
  f.open();
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 4, memory.data()), absent(4, 1, 5000, 1, 5, memory.data());
  f.put(b);
  keep(f, b, kRetain);
  CHECK(b.all(Status::kOk));
  keep(f, absent, kRetain);
  CHECK(absent.all(Status::kMiss));
  CHECK_EQ(f.count(Counter::kKeepMisses), 4u);
  CHECK_EQ(segment.store().stats().at("retained_objects"), uint64_t{4});
}

TEST(a_page_that_has_moved_is_looked_up_once_more) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1, "", 64u << 20, {}, with_budget());
  f.open();
  std::vector<uint8_t> memory(2 * 5000);
  Batch b(2, 1, 5000, 1, 6, memory.data());
  f.put(b);  // and remembers where
  b.keys.ns = f.client.namespace_state(f.handle).ns;
  segment.store().remove(b.keys);
  TestSegment other(f.directory, 1, 2, "", 64u << 20, {}, with_budget());
  PageClient writer({{"127.0.0.1", f.directory.port(), ""}}, client_options());
  const int handle = writer.open_namespace(Fixture::kIdentity, "m", Deadline::after_ms(kPlentyMs)).second;
  const Deadline until = Deadline::after_ms(kPlentyMs);
  Batch again(2, 1, 5000, 1, 6, memory.data());
  do {  // until the directory has heard of the removal, it is there already
    writer.put(handle, again.keys, *again.pieces, {}, Deadline::after_ms(kPlentyMs), again.statuses.data());
  } while (!again.all(Status::kOk) && !until.expired());
  CHECK(again.all(Status::kOk));
  keep(f, b, kRetain);
  CHECK(b.all(Status::kOk));
  CHECK_EQ(segment.store().stats().at("retained_objects") + other.store().stats().at("retained_objects"),
           uint64_t{2});
}

TEST(what_is_over_the_budget_is_no_space_and_counted_and_stored_all_the_same) {
  SegmentStoreOptions options;
  options.retained_fraction_max = options.retained_namespace_fraction_max = 0;
  Fixture f;
  TestSegment segment(f.directory, 0, 1, "", 64u << 20, {}, options);
  f.open();
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 7, memory.data());
  put_with(f, b, kRetain);
  CHECK(b.all(Status::kOk));
  CHECK_EQ(f.count(Counter::kKeepRefused), 4u);
  keep(f, b, kRetain);
  CHECK(b.all(Status::kNoSpace));
  CHECK_EQ(f.count(Counter::kKeepRefused), 8u);
}

TEST(a_put_with_an_intent_keeps_its_pages_those_that_were_there_included) {
  for (const bool same_host : {false, true}) {
    Fixture f(same_host ? client_options() : tcp_only());
    TestSegment segment(f.directory, 0, 1, same_host ? socket_path() : "", 64u << 20, {}, with_budget());
    f.open();
    std::vector<uint8_t> memory(20 * 65536);
    Batch there(5, 1, 65536, 1, 8, memory.data()), b(20, 1, 65536, 1, 8, memory.data());
    f.put(there);
    CHECK(there.all(Status::kOk));
    put_with(f, b, kRetain);
    for (size_t i = 0; i < b.statuses.size(); ++i)
      CHECK_EQ(unsigned{b.statuses[i]}, static_cast<unsigned>(i < 5 ? Status::kExists : Status::kOk));
    CHECK_EQ(segment.store().stats().at("retained_objects"), uint64_t{20});
    put_with(f, b, {});
    CHECK_EQ(segment.store().stats().at("retained_objects"), uint64_t{20});  // nothing said changes nothing
  }
}

TEST(a_chain_that_goes_over_several_connections_is_kept_from_its_head_on) {
  SegmentStoreOptions options;
  options.retained_fraction_max = options.retained_namespace_fraction_max = 1.0 / 32;  // 32 objects
  for (unsigned round = 0; round < 5; ++round) {
    Fixture f(tcp_only());
    TestSegment segment(f.directory, 0, 1, "", 64u << 20, {}, options);
    f.open();
    std::vector<uint8_t> memory(64 * 65536);
    Batch b(64, 1, 65536, 1, 20 + round, memory.data());
    put_with(f, b, kRetain);
    CHECK(b.all(Status::kOk));
    CHECK_EQ(f.count(Counter::kKeepRefused), 32u);
    keep(f, b, kRetain);
    for (size_t i = 0; i < b.statuses.size(); ++i)
      CHECK_EQ(unsigned{b.statuses[i]}, static_cast<unsigned>(i < 32 ? Status::kOk : Status::kNoSpace));
  }
}

TEST(a_segment_of_an_earlier_release_takes_puts_and_is_sent_no_intent) {
  Fixture f(tcp_only());
  std::atomic<int> with_intent{0};
  ScriptedSegment earlier(
      f.directory, 0,
      [&](int fd, const Request& r) {
        skip_payload(fd, r);
        with_intent += r.op() != Op::kPut || (r.body[1] & wire::kPutHasIntent) != 0;
        answer_put(fd, r, Status::kOk);
      },
      wire::kFeatureCommit);
  f.open();
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 9, memory.data());
  PutOptions options;
  options.wish = kRetain;
  options.ack_committed = false;
  f.client.put(f.handle, b.keys, *b.pieces, options, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(b.all(Status::kOk));
  CHECK_EQ(with_intent.load(), 0);
  CHECK_EQ(f.count(Counter::kKeepUnsupported), 4u);
  announce(f, b, 0);
  keep(f, b, kRetain);
  CHECK(b.all(Status::kUnsupportedVersion));
  CHECK_EQ(earlier.requests(Op::kKeep), 0);
  CHECK_EQ(f.count(Counter::kKeepUnsupported), 8u);
}

TEST(a_keep_at_a_hung_segment_ends_at_its_deadline) {
  Fixture f(slow_back_off());
  f.open();
  std::vector<uint8_t> memory(2 * 5000);
  Batch b(2, 1, 5000, 1, 10, memory.data());
  ScriptedSegment hung(f.directory, 0, [](int, const Request&) {}, wire::kFeatureKeep);
  announce(f, b, 0);
  const auto start = Deadline::Clock::now();
  keep(f, b, kRetain, 200);
  CHECK(elapsed_ms(start) <= 200 + kLateMsMax);
  CHECK(b.all(Status::kTimeout));
}

TEST(after_a_clear_a_keep_finds_nothing_and_says_miss) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1, "", 64u << 20, {}, with_budget());
  f.open();
  std::vector<uint8_t> memory(2 * 5000);
  Batch b(2, 1, 5000, 1, 11, memory.data());
  f.put(b);
  CHECK(f.client.bump_namespace(f.handle, Deadline::after_ms(kPlentyMs)) == Status::kOk);
  keep(f, b, kRetain);
  CHECK(b.all(Status::kMiss));
}

TEST_MAIN()
