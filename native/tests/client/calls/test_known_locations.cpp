// What a client knows of where pages are: it goes there first, with a master and without one.
#include "client/scripted_segment.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

constexpr int64_t kQuickMs = 400;

// A client whose only master can be taken away.
struct Rig {
  explicit Rig(PageClientOptions options = tcp_only()) : directory(std::make_unique<TestDirectory>()) {
    options.connect_timeout_ms = 100;
    client =
        std::make_unique<PageClient>(std::vector<PeerAddress>{{"127.0.0.1", directory->port(), ""}}, options);
  }
  void open() {
    const auto opened = client->open_namespace(Fixture::kIdentity, "m", Deadline::after_ms(kPlentyMs));
    CHECK(opened.first == Status::kOk);
    handle = opened.second;
  }
  void put(Batch& b, bool ack_committed = true, int64_t ms = kPlentyMs) {
    PutOptions options;
    options.ack_committed = ack_committed;
    client->put(handle, b.keys, *b.pieces, options, Deadline::after_ms(ms), b.statuses.data());
  }
  void get(Batch& b) {
    client->get(handle, b.keys, *b.pieces, Deadline::after_ms(kPlentyMs), b.statuses.data());
  }
  void exists(Batch& b, uint32_t pin_ms) {
    client->exists(handle, b.keys, pin_ms, Deadline::after_ms(kPlentyMs), b.statuses.data());
  }
  uint64_t count(Counter counter) const { return client->counters().value(counter); }

  std::unique_ptr<TestDirectory> directory;
  std::unique_ptr<PageClient> client;
  int handle = 0;
};

// Removes the batch's pages at the segment, as an eviction does: nobody tells the client.
void take_away(TestSegment& segment, const Rig& rig, Batch& b) {
  KeyBlock keys = b.keys;
  keys.ns = rig.client->namespace_state(rig.handle).ns;
  segment.store().remove(keys);
}

}  // namespace

TEST(what_a_client_has_put_it_gets_and_pins_without_a_master) {
  Rig rig;
  TestSegment segment(*rig.directory, 0, 1);
  rig.open();
  std::vector<uint8_t> memory(8 * 5000), back(8 * 5000);
  fill(memory.data(), memory.size(), 1);
  Batch b(8, 1, 5000, 1, 1, memory.data()), in(8, 1, 5000, 1, 1, back.data());
  rig.put(b);
  CHECK(b.all(Status::kOk));
  rig.get(in);
  CHECK(in.all(Status::kOk) && back == memory);
  rig.exists(in, 1000);
  CHECK(in.all(Status::kOk));
  CHECK_EQ(rig.directory->requests(Op::kLookup) + rig.directory->requests(Op::kExists), 0);
  CHECK_EQ(rig.count(Counter::kLocationsUsed), 16u);
}

TEST(what_a_client_has_got_or_pinned_it_gets_without_a_master) {
  for (const bool pinned : {false, true}) {
    Rig writer;
    TestSegment segment(*writer.directory, 0, 1);
    writer.open();
    std::vector<uint8_t> memory(8 * 5000), back(8 * 5000);
    fill(memory.data(), memory.size(), 1);
    Batch b(8, 1, 5000, 1, 1, memory.data()), in(8, 1, 5000, 1, 1, back.data());
    writer.put(b);
    CHECK(b.all(Status::kOk));
    PageClient reader(std::vector<PeerAddress>{{"127.0.0.1", writer.directory->port(), ""}}, tcp_only());
    const auto opened = reader.open_namespace(Fixture::kIdentity, "m", Deadline::after_ms(kPlentyMs));
    CHECK(opened.first == Status::kOk);
    const auto get = [&] {
      reader.get(opened.second, in.keys, *in.pieces, Deadline::after_ms(kPlentyMs), in.statuses.data());
    };
    if (pinned)
      reader.exists(opened.second, in.keys, 1000, Deadline::after_ms(kPlentyMs), in.statuses.data());
    else
      get();
    CHECK(in.all(Status::kOk));
    CHECK_EQ(reader.counters().value(Counter::kLocationsUsed), 0u);
    const auto asked = writer.directory->requests(Op::kLookup);
    get();
    CHECK(in.all(Status::kOk) && back == memory);
    CHECK_EQ(writer.directory->requests(Op::kLookup), asked);
    CHECK_EQ(reader.counters().value(Counter::kLocationsUsed), 8u);
  }
}

TEST(what_is_sealed_and_not_durable_is_not_known) {
  Rig rig;
  TestSegment segment(*rig.directory, 0, 1);
  rig.open();
  segment.hold_commits(true);
  std::vector<uint8_t> memory(5000);
  Batch b(1, 1, 5000, 1, 2, memory.data());
  rig.put(b, false);
  CHECK(b.all(Status::kOk));
  rig.exists(b, 1000);  // the segment would say yes: the guess beside the look-up has asked it
  CHECK(b.all(Status::kMiss));
  CHECK(segment.store().stats().at("exists_hits") > 0);
  segment.hold_commits(false);
}

TEST(with_the_only_master_gone_known_pages_are_read_on_and_the_rest_is_a_quick_miss) {
  for (const bool same_host : {false, true}) {
    PageClientOptions options = client_options();
    options.transport_options["same_host"] = same_host ? "true" : "false";
    options.namespace_confirmed_ms = 0;  // each call would like to hear from the master
    Rig rig(options);
    TestSegment segment(*rig.directory, 0, 1, same_host ? socket_path() : "");
    rig.open();
    std::vector<uint8_t> memory(8 * 5000), back(8 * 5000), other(5000);
    fill(memory.data(), memory.size(), 3);
    Batch b(8, 1, 5000, 1, 3, memory.data()), in(8, 1, 5000, 1, 3, back.data());
    Batch unknown(1, 1, 5000, 1, 4, other.data());
    rig.put(b);
    CHECK(b.all(Status::kOk));
    segment.detach();
    rig.directory.reset();
    const auto start = Deadline::Clock::now();
    for (int round = 0; round < 20; ++round) {
      std::fill(back.begin(), back.end(), 0);
      rig.get(in);
      CHECK(in.all(Status::kOk) && back == memory);
      rig.exists(in, 10);
      CHECK(in.all(Status::kOk));
      rig.exists(in, 0);
      CHECK(in.all(Status::kOk));
      rig.get(unknown);
      CHECK(unknown.none_ok());
      rig.exists(unknown, 10);
      CHECK(unknown.none_ok());
      rig.put(unknown);
      CHECK(unknown.none_ok());
    }
    CHECK(elapsed_ms(start) < 20 * kQuickMs);
    CHECK_EQ(rig.count(Counter::kLocationsWithoutDirectory), 20u * 3 * 8);
    take_away(segment, rig, b);
    rig.exists(in, 10);
    CHECK(in.none_ok());
    rig.exists(in, 0);
    CHECK(in.none_ok());
    rig.get(in);
    CHECK(in.none_ok());
    CHECK_EQ(rig.count(Counter::kLocationsStale), 8u);
  }
}

TEST(a_master_that_hangs_takes_little_from_a_call_that_knows_where_its_pages_are) {
  PageClientOptions options = slow_back_off();
  options.namespace_confirmed_ms = 0;
  TestDirectory directory;
  TestSegment segment(directory, 0, 1);
  PageClient client({{"127.0.0.1", directory.port(), ""}}, options);
  const int handle = client.open_namespace(Fixture::kIdentity, "m", Deadline::after_ms(kPlentyMs)).second;
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 5, memory.data());
  client.put(handle, b.keys, *b.pieces, {}, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(b.all(Status::kOk));
  directory.hang();
  for (int round = 0; round < 3; ++round) {
    const auto start = Deadline::Clock::now();
    client.get(handle, b.keys, *b.pieces, Deadline::after_ms(kPlentyMs), b.statuses.data());
    CHECK(b.all(Status::kOk));
    CHECK(elapsed_ms(start) < kQuickMs);
  }
}

TEST(an_exists_without_a_pin_leaves_time_to_ask_the_segments_when_the_master_hangs) {
  TestDirectory directory;
  TestSegment segment(directory, 0, 1);
  PageClient client({{"127.0.0.1", directory.port(), ""}}, slow_back_off());
  const int handle = client.open_namespace(Fixture::kIdentity, "m", Deadline::after_ms(kPlentyMs)).second;
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 12, memory.data());
  client.put(handle, b.keys, *b.pieces, {}, Deadline::after_ms(kPlentyMs), b.statuses.data());
  directory.hang();
  client.exists(handle, b.keys, 0, Deadline::after_ms(600), b.statuses.data());
  CHECK(b.all(Status::kOk));
}

TEST(a_page_that_is_gone_from_where_it_was_known_is_looked_up_again) {
  Rig rig;
  auto first = std::make_unique<TestSegment>(*rig.directory, 0, 1);
  rig.open();
  std::vector<uint8_t> memory(4 * 5000), back(4 * 5000);
  fill(memory.data(), memory.size(), 6);
  Batch b(4, 1, 5000, 1, 6, memory.data()), in(4, 1, 5000, 1, 6, back.data());
  rig.put(b);
  TestSegment second(*rig.directory, 1, 2);
  Rig writer;
  writer.directory->set_segment(second.record());
  writer.open();
  writer.put(b);
  CHECK(b.all(Status::kOk));
  take_away(*first, rig, b);
  rig.exists(in, 1000);
  CHECK(in.all(Status::kOk));
  CHECK_EQ(rig.count(Counter::kLocationsStale), 4u);
  const int lookups = rig.directory->requests(Op::kLookup);
  rig.get(in);
  CHECK(in.all(Status::kOk) && back == memory);
  CHECK_EQ(rig.directory->requests(Op::kLookup), lookups);  // the new place is known now
}

TEST(a_segment_with_new_memory_under_the_same_index_and_address_serves_nothing_of_the_old) {
  Rig rig;
  auto first = std::make_unique<TestSegment>(*rig.directory, 0, 1);
  rig.open();
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 7, memory.data());
  rig.put(b);
  CHECK(b.all(Status::kOk));
  const SegmentRecord old = first->record();
  first.reset();
  rig.directory->index().drop_segment(0);
  DataServerOptions same_port;
  same_port.tcp_port = old.tcp_port;
  TestSegment second(*rig.directory, 0, 2, "", 64u << 20, same_port);
  rig.directory->set_segment(old);  // the map is late
  rig.exists(b, 1000);
  CHECK(b.none_ok());
  rig.get(b);
  CHECK(b.none_ok());
  CHECK(rig.count(Counter::kRefusedHellos) > 0);
  rig.directory->set_segment(second.record());
  const Deadline until = Deadline::after_ms(kPlentyMs);
  do {
    rig.get(b);
  } while (!b.all(Status::kMiss) && !until.expired());
  CHECK(b.all(Status::kMiss));
}

TEST(a_namespace_cleared_by_somebody_else_is_noticed_at_the_next_look_at_the_directory) {
  PageClientOptions options = tcp_only();
  options.namespace_confirmed_ms = 0;
  Rig rig(options);
  TestSegment segment(*rig.directory, 0, 1);  // nobody tells it of the clear
  rig.open();
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 8, memory.data());
  rig.put(b);
  PageClient other({{"127.0.0.1", rig.directory->port(), ""}}, tcp_only());
  const int handle = other.open_namespace(Fixture::kIdentity, "m", Deadline::after_ms(kPlentyMs)).second;
  CHECK(other.bump_namespace(handle, Deadline::after_ms(kPlentyMs)) == Status::kOk);
  for (const auto& ask :
       {std::function<void()>([&] { rig.get(b); }), std::function<void()>([&] { rig.exists(b, 9); }),
        std::function<void()>([&] { rig.exists(b, 0); })}) {
    ask();
    CHECK(b.all(Status::kMiss));
  }
  CHECK_EQ(rig.count(Counter::kStaleNamespace), 1u);
}

TEST(a_client_that_has_cleared_a_namespace_finds_nothing_of_it_at_segments_that_have_not_heard) {
  Rig rig;
  TestSegment segment(*rig.directory, 0, 1);
  rig.open();
  std::vector<uint8_t> memory(4 * 5000);
  Batch b(4, 1, 5000, 1, 9, memory.data());
  rig.put(b);
  CHECK(rig.client->bump_namespace(rig.handle, Deadline::after_ms(kPlentyMs)) == Status::kOk);
  rig.get(b);
  CHECK(b.all(Status::kMiss));
  rig.exists(b, 1000);
  CHECK(b.all(Status::kMiss));
}

TEST(with_few_segments_a_pin_goes_out_beside_the_look_up_and_with_many_after_it) {
  for (const uint32_t segments : {1u, 2u, 3u}) {
    Rig rig, reader;
    std::vector<std::unique_ptr<TestSegment>> all;
    for (uint32_t i = 0; i < segments; ++i)
      all.push_back(std::make_unique<TestSegment>(*rig.directory, i, static_cast<uint8_t>(i + 1)));
    rig.open();
    std::vector<uint8_t> memory(32 * 5000);
    Batch b(32, 1, 5000, 1, 10, memory.data());
    rig.put(b);
    CHECK(b.all(Status::kOk));
    PageClient fresh({{"127.0.0.1", rig.directory->port(), ""}}, tcp_only());
    const int handle = fresh.open_namespace(Fixture::kIdentity, "m", Deadline::after_ms(kPlentyMs)).second;
    Batch warm(1, 1, 5000, 1, 10, memory.data());  // the map is there after one call
    fresh.exists(handle, warm.keys, 1000, Deadline::after_ms(kPlentyMs), warm.statuses.data());
    fresh.exists(handle, b.keys, 1000, Deadline::after_ms(kPlentyMs), b.statuses.data());
    CHECK(b.all(Status::kOk));
    CHECK_EQ(fresh.counters().value(Counter::kExistsGuessed), segments <= 2 ? 31u : 0u);
  }
}

TEST(guesses_stop_while_most_of_what_is_asked_for_is_absent) {
  Rig rig;
  TestSegment segment(*rig.directory, 0, 1);
  rig.open();
  std::vector<uint8_t> memory(5000);
  Batch first(1, 1, 5000, 1, 11, memory.data());
  rig.put(first);
  const auto pins = [&] { return segment.server().stats().at("requests"); };
  for (unsigned i = 0; i < 4; ++i) {
    Batch absent(1, 1, 5000, 1, 100 + i, memory.data());
    rig.exists(absent, 1000);
    CHECK(absent.all(Status::kMiss));
  }
  const uint64_t before = pins();
  Batch absent(1, 1, 5000, 1, 200, memory.data());
  rig.exists(absent, 1000);
  CHECK(absent.all(Status::kMiss));
  CHECK_EQ(pins(), before);
}

TEST_MAIN()
