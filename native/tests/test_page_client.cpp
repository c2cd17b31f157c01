// The whole client against real segments and a real index, and against segments that hang, lie or die.
#include <sys/wait.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "check.hpp"
#include "client_test_peers.hpp"
#include "kvstore/digest.hpp"
#include "kvstore/page_client.hpp"
#include "kvstore/shared_buffer.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

constexpr int64_t kLateMsMax = 100;
constexpr int64_t kPlentyMs = 10000;

std::string socket_path() {
  static std::atomic<int> number{0};
  return "/tmp/kvstore-test-" + std::to_string(::getpid()) + "-" + std::to_string(number++) + ".sock";
}

// Keys and memory of a batch: every key has an object of size_bytes for each shard, in pieces_per_entry pieces.
struct Batch {
  Batch(size_t key_count, size_t shard_count, size_t size_bytes, size_t pieces_per_entry, unsigned seed,
        uint8_t* memory)
      : bytes(memory), total(key_count * shard_count * size_bytes) {
    std::mt19937 random(seed);
    hashes.resize(key_count * kHashBytes);
    for (auto& b : hashes) b = static_cast<uint8_t>(random());
    for (size_t s = 0; s < shard_count; ++s) {
      Shard shard = kWholeShard;
      shard[0] = static_cast<uint8_t>(s);
      shards.insert(shards.end(), shard.begin(), shard.end());
    }
    keys.shard_count = static_cast<uint32_t>(shard_count);
    keys.key_count = static_cast<uint32_t>(key_count);
    keys.shards = shards.data();
    keys.hashes = hashes.data();
    std::vector<uint64_t> pointers, sizes;
    for (size_t e = 0; e < key_count * shard_count; ++e)
      for (size_t j = 0, at = 0; j < pieces_per_entry; ++j) {
        const size_t end = size_bytes * (j + 1) / pieces_per_entry;
        pointers.push_back(reinterpret_cast<uint64_t>(memory + e * size_bytes + at));
        sizes.push_back(end - at);
        at = end;
      }
    pieces = std::make_unique<Pieces>(Pieces::from_pointers(pointers, sizes, pieces_per_entry));
    statuses.assign(key_count * shard_count, 77);
  }
  bool all(Status status) const {
    return std::all_of(statuses.begin(), statuses.end(),
                       [&](uint8_t s) { return s == static_cast<uint8_t>(status); });
  }
  bool none_ok() const {
    return std::none_of(statuses.begin(), statuses.end(), [](uint8_t s) { return s == 0; });
  }
  uint8_t* bytes;
  size_t total;
  std::vector<uint8_t> hashes, shards, statuses;
  CallKeys keys;
  std::unique_ptr<Pieces> pieces;
};

void fill(uint8_t* to, size_t n, unsigned seed) {
  std::mt19937 random(seed);
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(random());
}

struct Fixture {
  explicit Fixture(PageClientOptions options = {}) : client({{"127.0.0.1", directory.port(), ""}}, options) {}
  void open() {
    const auto [status, opened] =
        client.open_namespace("{\"model\":\"m\"}", "m", Deadline::after_ms(kPlentyMs));
    CHECK(status == Status::kOk);
    handle = opened;
  }
  void put(Batch& b, int64_t ms = kPlentyMs) {
    client.put(handle, b.keys, *b.pieces, {}, Deadline::after_ms(ms), b.statuses.data());
  }
  void get(Batch& b, int64_t ms = kPlentyMs) {
    client.get(handle, b.keys, *b.pieces, Deadline::after_ms(ms), b.statuses.data());
  }
  void exists(Batch& b, uint32_t pin_ms, int64_t ms = kPlentyMs) {
    client.exists(handle, b.keys, pin_ms, Deadline::after_ms(ms), b.statuses.data());
  }
  uint64_t count(Counter c) const { return client.counters().value(c); }

  TestDirectory directory;
  PageClient client;
  int handle = 0;
};

PageClientOptions tcp_only() {
  PageClientOptions options;
  options.same_host = false;
  return options;
}

// A peer that fails stays refused for the rest of a test.
PageClientOptions slow_back_off() {
  PageClientOptions options = tcp_only();
  options.backoff_ms_min = options.backoff_ms_max = 60000;
  return options;
}

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

void round_trip(PageClientOptions options, bool with_unix, bool registered, Counter get_path,
                Counter put_path) {
  options.run_bytes = 65536;
  Fixture f(options);
  const std::string path = with_unix ? socket_path() : "";
  TestSegment segment(f.directory, 0, 1, path);
  f.open();
  const struct {
    size_t keys, shards, size, pieces;
  } kShapes[] = {{1, 1, 1, 1},     {7, 1, 4097, 3},     {128, 1, 16384, 2},
                 {9, 3, 12345, 5}, {3, 2, 1000003, 64}, {40, 1, 8191, 40}};
  unsigned seed = 1;
  for (const auto& shape : kShapes) {
    const size_t total = shape.keys * shape.shards * shape.size;
    SharedBuffer shared(total);
    std::vector<uint8_t> plain(total), back(total, 0);
    uint8_t* source = registered ? static_cast<uint8_t*>(shared.data()) : plain.data();
    fill(source, total, ++seed);
    Batch out(shape.keys, shape.shards, shape.size, shape.pieces, seed, source);
    f.put(out);
    CHECK(out.all(Status::kOk));
    f.put(out);
    CHECK(out.all(Status::kExists));
    Batch in(shape.keys, shape.shards, shape.size, std::min(shape.pieces + 1, shape.size), seed, back.data());
    f.exists(in, 1000);
    CHECK(in.all(Status::kOk));
    f.get(in);
    CHECK(in.all(Status::kOk));
    CHECK(std::equal(back.begin(), back.end(), source));
  }
  CHECK(f.count(get_path) > 0 && f.count(put_path) > 0);
  for (const Counter other : {Counter::kTcpBytesGet, Counter::kSameHostBytesGet})
    CHECK_EQ(f.count(other) > 0, other == get_path);
  if (with_unix) CHECK_EQ(f.count(Counter::kPutPulledBytes) > 0, registered);
  CHECK_EQ(
      f.count(Counter::kTimeouts) + f.count(Counter::kProtocolErrors) + f.count(Counter::kInternalErrors),
      0u);
}

}  // namespace

TEST(objects_of_odd_sizes_and_many_pieces_come_back_over_tcp) {
  round_trip(tcp_only(), false, false, Counter::kTcpBytesGet, Counter::kTcpBytesPut);
}

TEST(objects_put_from_plain_memory_come_back_on_the_same_host) {
  round_trip({}, true, false, Counter::kSameHostBytesGet, Counter::kSameHostBytesPut);
}

TEST(objects_pulled_out_of_a_shared_buffer_come_back_on_the_same_host) {
  round_trip({}, true, true, Counter::kSameHostBytesGet, Counter::kPutPulledBytes);
}

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

TEST(what_the_directory_promises_and_the_segment_does_not_have_is_a_miss) {
  Fixture f;
  std::vector<uint8_t> memory(4 * 5000);
  TestSegment segment(f.directory, 0, 1);
  f.open();
  Batch b(4, 1, 5000, 1, 6, memory.data());
  b.keys.ns = f.client.namespace_state(f.handle).ns;
  wire::Writer group;
  const auto fps = b.keys.fingerprints();
  group.u8(1).zeros(3).u32(4).raw(b.keys.ns.data(), 8).raw(fps.data(), 4 * kFingerprintBytes);
  for (int i = 0; i < 4; ++i) group.u32(5000);
  f.directory.index().apply(0, group.data(), group.size());
  f.exists(b, 1000);
  CHECK(b.all(Status::kMiss));
  f.get(b);
  CHECK(b.all(Status::kMiss));
  f.exists(b, 0);
  CHECK(b.all(Status::kOk));  // without a pin only the directory is asked
}

TEST(an_object_of_another_length_is_never_copied) {
  for (const bool same_host : {false, true}) {
    PageClientOptions options;
    options.same_host = same_host;
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

TEST(a_bumped_namespace_is_empty_for_a_client_that_did_not_bump_it) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1);
  f.open();
  PageClient second({{"127.0.0.1", f.directory.port(), ""}}, {});
  const auto opened = second.open_namespace("{\"model\":\"m\"}", "m", Deadline::after_ms(kPlentyMs));
  CHECK(opened.first == Status::kOk);
  std::vector<uint8_t> memory(8 * 5000);
  Batch b(8, 1, 5000, 1, 8, memory.data());
  f.put(b);
  CHECK(f.client.bump_namespace(f.handle, Deadline::after_ms(kPlentyMs)) == Status::kOk);
  second.get(opened.second, b.keys, *b.pieces, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(b.all(Status::kMiss));
  CHECK_EQ(second.namespace_state(opened.second).epoch, 2u);
  CHECK_EQ(second.counters().value(Counter::kStaleNamespace), 1u);
  f.put(b);
  CHECK(b.all(Status::kOk));
}

TEST(a_removed_object_is_gone_and_a_fetch_finds_only_what_is_there) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(4 * 5000);
  fill(memory.data(), memory.size(), 9);
  Batch b(4, 1, 5000, 1, 9, memory.data());
  f.put(b);
  Batch first(1, 1, 5000, 1, 9, memory.data());
  f.client.remove(f.handle, first.keys, Deadline::after_ms(kPlentyMs), first.statuses.data());
  CHECK(first.all(Status::kOk));
  f.client.remove(f.handle, first.keys, Deadline::after_ms(kPlentyMs), first.statuses.data());
  CHECK(first.all(Status::kMiss));
  const auto lengths =
      f.client.fetch_lengths(f.handle, b.keys, 10000, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(lengths == std::vector<uint32_t>({0, 5000, 5000, 0}));
  std::vector<uint8_t> one(5000), two(5000);
  const std::vector<uint64_t> pointers = {0, reinterpret_cast<uint64_t>(one.data()),
                                          reinterpret_cast<uint64_t>(two.data()), 0};
  f.client.fetch(f.handle, b.keys, lengths, pointers, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(b.statuses == std::vector<uint8_t>({1, 0, 0, static_cast<uint8_t>(Status::kTooLarge)}));
  CHECK(std::equal(one.begin(), one.end(), memory.begin() + 5000));
}

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
  CHECK_EQ(segment.gets, 4);
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
  CHECK_EQ(segment.suspects, 1);
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
      {{"127.0.0.1", dead_port, ""}, {"127.0.0.1", hung.port(), ""}, {"127.0.0.1", good.port(), ""}}, {});
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

TEST(eight_threads_share_one_client) {
  PageClientOptions options;
  options.run_bytes = 65536;
  Fixture f(options);
  TestSegment near(f.directory, 0, 1, socket_path()), far(f.directory, 1, 2);
  f.open();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (unsigned round = 0; round < 6; ++round) {
        const size_t size = 3000 + 5000 * ((t + round) % 4);
        SharedBuffer shared(24 * size);
        std::vector<uint8_t> back(24 * size);
        fill(static_cast<uint8_t*>(shared.data()), shared.size_bytes(), 100 * t + round);
        Batch out(12, 2, size, 3, 100 * t + round, static_cast<uint8_t*>(shared.data()));
        Batch in(12, 2, size, 2, 100 * t + round, back.data());
        f.put(out);
        f.exists(in, 1000);
        wrong += !in.all(Status::kOk);
        f.get(in);
        wrong +=
            !in.all(Status::kOk) || !out.all(Status::kOk) || !std::equal(back.begin(), back.end(), out.bytes);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(after_close_every_call_answers_as_an_empty_store) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(5000);
  Batch b(1, 1, 5000, 1, 20, memory.data());
  f.put(b);
  f.client.close();
  f.client.close();
  f.get(b);
  CHECK(b.none_ok());
  f.exists(b, 1000);
  CHECK(b.none_ok());
  CHECK(f.client.segments().empty());
}

#ifndef __SANITIZE_THREAD__
TEST(a_forked_child_finds_an_empty_store_and_leaves_the_parents_alone) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1, socket_path());
  f.open();
  std::vector<uint8_t> memory(5000);
  Batch b(1, 1, 5000, 1, 21, memory.data());
  f.put(b);
  f.get(b);
  const pid_t child = ::fork();
  if (child == 0) {
    f.get(b, 1000);
    f.client.close();
    ::_exit(b.none_ok() ? 0 : 1);
  }
  int outcome = -1;
  ::waitpid(child, &outcome, 0);
  CHECK_EQ(outcome, 0);
  f.get(b);
  CHECK(b.all(Status::kOk));
}
#endif

TEST_MAIN()
