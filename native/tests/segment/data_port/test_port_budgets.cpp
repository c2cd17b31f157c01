// Peers that announce, hold and register more than they should, against a data port of its own.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "segment/data_port/server.hpp"
#include "segment/data_port_client.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

constexpr uint64_t kMiB = 1 << 20;

struct Served {
  explicit Served(const BudgetLimits& limits = {}, uint64_t capacity_bytes = 16 * kMiB,
                  uint32_t stall_timeout_ms = 500) {
    SegmentStoreOptions store_options = small_store(capacity_bytes);
    store_options.budgets = limits;
    store = std::make_shared<SegmentStore>(store_options);
    char name[] = "/tmp/kvstore-test-XXXXXX";
    directory = ::mkdtemp(name);
    options.tcp_host = "127.0.0.1";
    options.unix_path = directory + "/data.sock";
    options.stall_timeout_ms = stall_timeout_ms;
    server = std::make_unique<DataServer>(store, options);
  }
  ~Served() {
    server.reset();
    ::rmdir(directory.c_str());
  }
  uint64_t stat(const std::string& name) const { return store->stats().at(name); }
  template <typename Condition>
  static bool comes_true(Condition&& condition) {
    const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (SegmentStore::Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  std::string directory;
  std::shared_ptr<SegmentStore> store;
  DataServerOptions options;
  std::unique_ptr<DataServer> server;
};

static std::vector<std::string> names(const std::string& prefix, int count) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.push_back(prefix + std::to_string(i));
  return out;
}

static bool is_cut_off(DataClient& client) {
  try {
    for (;;) client.receive();
  } catch (const std::runtime_error&) {
    return true;
  }
}

static std::vector<uint8_t> first(const std::vector<uint8_t>& frame, size_t bytes) {
  return {frame.begin(), frame.begin() + static_cast<ptrdiff_t>(bytes)};
}

static size_t head_bytes(const std::vector<uint8_t>& frame) {
  return wire::kHeaderBytes + wire::decode_header(frame.data()).body_bytes;
}

TEST(announced_puts_reserve_nothing_before_their_bytes_come) {
  Served s;
  DataClient honest(s.server->tcp_port());
  for (int i = 0; i < 2; ++i)
    CHECK(honest.call(put_frame(names("there" + std::to_string(i), 7), kMiB)).statuses() ==
          std::vector<uint8_t>(7, 0));
  std::vector<std::unique_ptr<DataClient>> silent;
  for (int i = 0; i < 16; ++i) {
    silent.push_back(std::make_unique<DataClient>(s.server->tcp_port()));
    const auto frame = put_frame(names("silent" + std::to_string(i), 8), kMiB);
    silent.back()->send(first(frame, head_bytes(frame)));
  }
  for (auto& client : silent) CHECK(is_cut_off(*client));
  CHECK_EQ(s.stat("evicted_objects"), uint64_t{0});
  CHECK_EQ(s.stat("object_count"), uint64_t{14});
}

TEST(a_put_that_stalls_gives_its_slots_back_and_takes_no_more_than_a_window_ahead) {
  Served s;
  DataClient client(s.server->tcp_port());
  const auto frame = put_frame(names("stalled", 80), 100000);
  client.send(first(frame, head_bytes(frame) + 10));
  CHECK(Served::comes_true([&] { return s.stat("budget_writing_bytes_used") > 0; }));
  CHECK(s.stat("used_bytes") <= 2 * kMiB);
  CHECK(is_cut_off(client));
  CHECK(Served::comes_true([&] { return s.stat("used_bytes") == 0; }));
  CHECK_EQ(s.stat("budget_writing_bytes_used"), uint64_t{0});
}

TEST(a_put_that_goes_slowly_on_is_served_to_its_end) {
  Served s({}, 16 * kMiB, 500);
  DataClient client(s.server->tcp_port());
  const auto frame = put_frame({"slow"}, 20);
  client.send(first(frame, head_bytes(frame)));
  // Each of its parts takes a good part of what a stall is; together they take several of them.
  for (size_t at = head_bytes(frame); at < frame.size(); at += 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    client.send({frame.begin() + static_cast<ptrdiff_t>(at), frame.begin() + static_cast<ptrdiff_t>(at + 2)});
  }
  CHECK(client.receive().statuses() == std::vector<uint8_t>(1, 0));
}

TEST(what_is_over_the_budget_of_puts_is_no_space_and_the_rest_is_stored) {
  BudgetLimits limits;
  limits.writing_bytes_max = 2 * kMiB;
  Served s(limits);
  DataClient client(s.server->tcp_port());
  const auto statuses = client.call(put_frame(names("k", 4), 600000)).statuses();
  CHECK(statuses == std::vector<uint8_t>({0, 3, 3, 3}));  // a session's share is a half
  CHECK_EQ(client.call(put_frame({"whole"}, 2 * kMiB)).statuses().at(0), 0);
  CHECK_EQ(client.call(put_frame({"larger"}, 2 * kMiB + 1)).statuses().at(0), 3);
  CHECK(s.stat("budget_writing_bytes_refused") >= 4);
  CHECK_EQ(s.stat("budget_writing_bytes_used"), uint64_t{0});
}

TEST(a_put_that_trickles_makes_room_for_one_that_waits) {
  BudgetLimits limits;
  limits.writing_bytes_max = 4 * kMiB;
  Served s(limits, 16 * kMiB, 60000);
  DataClient hog(s.server->tcp_port());
  const auto frame = put_frame({"hog"}, 4 * kMiB);
  hog.send(first(frame, head_bytes(frame) + 20000));
  CHECK(Served::comes_true([&] { return s.stat("budget_writing_bytes_used") >= 4 * kMiB; }));
  DataClient honest(s.server->tcp_port());
  wire::Writer body;
  body.u8(0).u8(0).u16(0).u32(30000);
  write_key_block(body, Keys({"honest"}).block());
  body.u32(1000);
  const std::vector<uint8_t> bytes = content("honest", 1000);
  std::vector<uint8_t> payload = bytes;
  const uint32_t digest = crc32c(0, bytes.data(), bytes.size());
  payload.resize(1004);
  std::memcpy(&payload[1000], &digest, 4);
  CHECK(honest.call(DataClient::frame(Op::kPut, body, payload)).statuses() == std::vector<uint8_t>(1, 0));
  CHECK(is_cut_off(hog));
}

TEST(a_large_object_is_reserved_when_some_of_it_has_come_and_what_follows_when_as_much_has) {
  Served s;
  DataClient large(s.server->tcp_port()), many(s.server->tcp_port()), hidden(s.server->tcp_port());
  auto frame = put_frame({"large"}, 4 * kMiB);
  large.send(first(frame, head_bytes(frame) + 10000));
  wire::Writer body = put_body(Keys({"little", "large too"}), {1, 4 * kMiB});
  std::vector<uint8_t> payload(4 * kMiB + 9);
  frame = DataClient::frame(Op::kPut, body, payload);
  hidden.send(first(frame, head_bytes(frame) + 10000));
  frame = put_frame(names("many", 80), 50000);
  many.send(first(frame, head_bytes(frame) + 300000));
  CHECK(Served::comes_true([&] { return s.stat("budget_writing_bytes_used") > 300000; }));
  CHECK(s.stat("budget_writing_bytes_used") < 700000);
  for (DataClient* client : {&large, &many, &hidden}) CHECK(is_cut_off(*client));
}

TEST(a_small_put_does_not_wait_for_those_that_hold_all_that_large_ones_may) {
  BudgetLimits limits;
  limits.writing_bytes_max = 32 * kMiB;
  Served s(limits, 64 * kMiB, 60000);
  DataClient one(s.server->tcp_port()), other(s.server->tcp_port()), honest(s.server->tcp_port());
  auto frame = put_frame({"one"}, 14 * kMiB);
  one.send(first(frame, head_bytes(frame) + 20000));
  frame = put_frame({"other"}, 10 * kMiB - 4096);
  other.send(first(frame, head_bytes(frame) + 20000));
  const auto held = [&] { return s.stat("budget_writing_bytes_used") >= 24 * kMiB - 4096; };
  CHECK(Served::comes_true(held));
  CHECK(honest.call(put_frame(names("honest", 8), 100000)).statuses() == std::vector<uint8_t>(8, 0));
  CHECK(held());  // nobody was ended for it
}

static size_t threads() {
  size_t count = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
    (void)each;
    ++count;
  }
  return count;
}

static int connect_to(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    throw std::runtime_error("connect");
  return fd;
}

TEST(who_says_nothing_has_no_thread_and_leaves_room_for_who_speaks) {
  Served s;
  const size_t before = threads();
  std::vector<int> silent;
  const uint32_t most = s.options.ungreeted_max;
  for (uint32_t i = 0; i < most; ++i) silent.push_back(connect_to(s.server->tcp_port()));
  CHECK(Served::comes_true([&] { return s.stat("budget_ungreeted_used") >= most; }));
  CHECK_EQ(threads(), before);
  DataClient client(s.server->tcp_port());
  CHECK_EQ(client.call(put_frame({"k"}, 100)).statuses().at(0), 0);
  for (const int fd : silent) ::close(fd);
  CHECK(Served::comes_true([&] { return s.stat("budget_ungreeted_used") == 0; }));
  CHECK(s.server->stats().at("ungreeted_dropped") >= 1);
}

TEST(objects_that_several_read_are_held_once_and_what_is_over_the_budget_is_unavailable) {
  BudgetLimits limits;
  limits.held_bytes_max = 2 * kMiB;
  Served s(limits);
  DataClient writer(s.server->tcp_port());
  const auto some = names("o", 4);
  CHECK(writer.call(put_frame(some, 900000)).statuses() == std::vector<uint8_t>(4, 0));
  DataClient one(s.options.unix_path), other(s.options.unix_path);
  const auto statuses = [&](DataClient& client, const std::vector<std::string>& which) {
    const DataReply reply =
        client.call(DataClient::frame(Op::kLocate, two_numbers_and_keys(60000, Keys(which))));
    std::vector<uint8_t> out;
    for (size_t i = 0; i < which.size(); ++i) out.push_back(reply.fields.at(8 + 32 * i + 28));
    return out;
  };
  CHECK(statuses(one, {"o0", "o1"}) == std::vector<uint8_t>(2, 0));
  CHECK(statuses(other, {"o0", "o1", "o2"}) == std::vector<uint8_t>({0, 0, 9}));
  CHECK_EQ(s.stat("budget_held_bytes_refused"), uint64_t{1});
  CHECK(s.stat("budget_held_bytes_used") <= 2 * kMiB);
  // A get waits until those who hold without copying have given back what they hold.
  const DataReply got = writer.call(DataClient::frame(Op::kGet, get_body(Keys({"o2", "o3"}))));
  CHECK(got.payload.size() == 1800000);
  CHECK(Served::comes_true([&] { return s.stat("budget_held_bytes_used") == 0; }));
}

TEST(a_get_that_fits_is_served_at_its_first_turn_while_one_that_does_not_waits_for_objects_as_large) {
  BudgetLimits limits;
  limits.held_bytes_max = 2 * kMiB;
  Served s(limits);
  Budget& held = s.store->budgets().held_bytes;
  DataClient small(s.server->tcp_port()), large(s.server->tcp_port());
  CHECK(small.call(put_frame(names("o", 5), kMiB / 2)).statuses() == std::vector<uint8_t>(5, 0));
  held.take_anyway(kMiB);
  std::thread waiting([&] {
    const DataReply got = large.call(DataClient::frame(Op::kGet, get_body(Keys(names("o", 4)))));
    CHECK_EQ(got.payload.size(), 2 * kMiB);
  });
  CHECK(Served::comes_true([&] { return held.is_contended(); }));
  const uint64_t refused_before = held.usage().refused;
  const DataReply got = small.call(DataClient::frame(Op::kGet, get_body(Keys({"o4"}))));
  CHECK_EQ(got.payload.size(), kMiB / 2);
  // It is refused at once, and no second time; the other one is at each of its looks.
  CHECK(held.usage().refused - refused_before <= 20);
  held.give_back(kMiB);
  waiting.join();
  CHECK(Served::comes_true([&] { return held.used() == 0; }));
}

TEST(a_session_that_forgets_to_unpin_loses_its_oldest_holds) {
  BudgetLimits limits;
  limits.held_bytes_max = 4 * kMiB;
  Served s(limits);
  DataClient client(s.options.unix_path);
  const auto some = names("o", 8);
  CHECK(client.call(put_frame(some, 900000)).statuses() == std::vector<uint8_t>(8, 0));
  for (uint32_t i = 0; i < 8; ++i)
    CHECK_EQ(client.call(DataClient::frame(Op::kLocate, two_numbers_and_keys(60000, Keys({some[i]})), {}, i))
                 .fields.at(36),
             0);
  CHECK(s.stat("budget_held_bytes_used") <= 2 * kMiB);
  CHECK(s.stat("budget_held_bytes_refused") >= 6);
}

TEST(a_get_whose_peer_reads_nothing_ends_and_holds_nothing_on) {
  Served s({}, 64 * kMiB);
  DataClient reader(s.server->tcp_port());
  const auto some = names("o", 30);
  CHECK(reader.call(put_frame(some, kMiB)).statuses() == std::vector<uint8_t>(30, 0));
  reader.send(DataClient::frame(Op::kGet, get_body(Keys(some))));
  CHECK(Served::comes_true([&] { return s.stat("budget_held_bytes_used") > 0; }));
  CHECK(Served::comes_true([&] { return s.stat("budget_held_bytes_used") == 0; }));
  CHECK(is_cut_off(reader));
}

TEST(a_session_pins_no_more_than_its_share) {
  Served s;
  DataClient greedy(s.server->tcp_port()), modest(s.server->tcp_port());
  const auto some = names("o", 12);
  for (const std::string& name : some) CHECK(greedy.call(put_frame({name}, kMiB)).statuses().at(0) == 0);
  const auto pin = DataClient::frame(Op::kPin, two_numbers_and_keys(60000, Keys(some)));
  CHECK(greedy.call(pin).statuses() == std::vector<uint8_t>(12, 0));  // there, if not promised to stay
  CHECK(s.stat("pinned_bytes") <= 4 * kMiB + 4096);
  CHECK_EQ(s.stat("budget_pinned_bytes_used"), s.stat("pinned_bytes"));
  CHECK_EQ(s.stat("budget_pinned_bytes_refused"), uint64_t{8});
  const auto others = DataClient::frame(Op::kPin, two_numbers_and_keys(60000, Keys({"o10", "o11"})));
  modest.call(others);
  CHECK(s.stat("pinned_bytes") >= 6 * kMiB);
}

// A memfd of `bytes`, sealed, written to or not, with so many more behind its end.
static int memfd(uint64_t bytes, bool written, unsigned flags = 0, uint64_t behind = 0) {
  const int fd = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd < 0) return fd;
  const auto size = static_cast<off_t>(bytes);
  const std::vector<uint8_t> data(written ? bytes : 0, 7);
  if (::ftruncate(fd, size) != 0 ||
      (written && ::pwrite(fd, data.data(), data.size(), 0) != static_cast<ssize_t>(data.size())) ||
      (behind > 0 && ::fallocate(fd, FALLOC_FL_KEEP_SIZE, size, static_cast<off_t>(behind)) != 0) ||
      ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    throw std::runtime_error("memfd");
  return fd;
}

struct Registered {
  Status status;
  uint32_t id = 0, mode = 0;
};

static Registered register_with(DataClient& client, int fd, uint64_t bytes) {
  wire::Writer body;
  body.u64(bytes).u32(0).u32(0);
  const DataReply made = client.call(DataClient::frame(Op::kRegister, body), fd);
  if (made.status != Status::kOk) return {made.status};
  wire::Reader fields(made.fields.data(), made.fields.size());
  const uint32_t id = fields.u32("buffer_id");
  return {made.status, id, fields.u32("mode")};
}

static uint64_t allocated_bytes(int fd) {
  struct stat status{};
  ::fstat(fd, &status);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

static std::vector<uint8_t> pull_frame(const std::string& name, uint32_t buffer_id, uint32_t bytes) {
  wire::Writer body = put_body(Keys({name}), {bytes});
  body.u32(buffer_id).u32(1).u64(0).u32(bytes);
  return DataClient::frame(Op::kPull, body);
}

TEST(memory_with_holes_costs_the_segment_nothing) {
  Served s;
  DataClient client(s.options.unix_path);
  const int sparse = memfd(8 * kMiB, false);
  const Registered made = register_with(client, sparse, 8 * kMiB);
  CHECK_EQ(made.mode, 2u);
  CHECK(client.call(pull_frame("zeros", made.id, 4 * kMiB)).statuses() == std::vector<uint8_t>(1, 0));
  CHECK_EQ(allocated_bytes(sparse), uint64_t{0});
  // Blocks beyond the end don't stand for those that are missing.
  const int behind = memfd(4 * kMiB, false, 0, 4 * kMiB);
  CHECK_EQ(allocated_bytes(behind), 4 * kMiB);
  CHECK_EQ(register_with(client, behind, 4 * kMiB).mode, 2u);
  ::close(sparse);
  ::close(behind);
}

TEST(memory_that_is_touched_after_it_was_registered_is_mapped_then) {
  Served s;
  DataClient client(s.options.unix_path);
  const int fd = memfd(kMiB, false);
  const Registered made = register_with(client, fd, kMiB);
  CHECK_EQ(made.mode, 2u);
  const std::vector<uint8_t> data(kMiB, 7);
  CHECK_EQ(::pwrite(fd, data.data(), data.size(), 0), static_cast<ssize_t>(kMiB));
  CHECK(client.call(pull_frame("late", made.id, 1000)).statuses() == std::vector<uint8_t>(1, 0));
  CHECK_EQ(s.stat("budget_registered_bytes_used"), kMiB);
  ::close(fd);
}

TEST(memory_whose_pages_are_taken_away_after_it_was_mapped_is_copied_from_no_more) {
  Served s;
  DataClient client(s.options.unix_path);
  const int fd = memfd(4 * kMiB, true);
  const Registered made = register_with(client, fd, 4 * kMiB);
  CHECK_EQ(made.mode, 1u);
  CHECK(client.call(pull_frame("before", made.id, 1000)).statuses() == std::vector<uint8_t>(1, 0));
  CHECK_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4 * kMiB), 0);
  CHECK_EQ(client.call(pull_frame("after", made.id, 1000)).status, Status::kBadRequest);
  CHECK_EQ(allocated_bytes(fd), uint64_t{0});
  ::close(fd);
}

TEST(huge_pages_are_read_and_never_mapped) {
  const int fd = memfd(4 * kMiB, false, MFD_HUGETLB);
  if (fd < 0) return;  // a kernel without
  Served s;
  DataClient client(s.options.unix_path);
  CHECK_EQ(register_with(client, fd, 4 * kMiB).mode, 2u);
  ::close(fd);
}

TEST(memory_over_the_budget_is_read_in_place_of_being_mapped) {
  BudgetLimits limits;
  limits.registered_bytes_max = 4 * kMiB;
  Served s(limits);
  DataClient one(s.options.unix_path), other(s.options.unix_path);
  const int fd = memfd(2 * kMiB, true);
  CHECK_EQ(register_with(one, fd, 2 * kMiB).mode, 1u);
  const Registered second = register_with(one, fd, 2 * kMiB);  // a session's share is a half
  CHECK_EQ(second.mode, 2u);
  CHECK(one.call(pull_frame("read", second.id, 1000)).statuses() == std::vector<uint8_t>(1, 0));
  CHECK_EQ(register_with(other, fd, 2 * kMiB).mode, 1u);
  CHECK_EQ(s.stat("budget_registered_bytes_used"), 4 * kMiB);
  CHECK(s.stat("budget_registered_bytes_refused") >= 1);
  wire::Writer unregister;
  unregister.u32(1);
  CHECK_EQ(one.call(DataClient::frame(Op::kUnregister, unregister)).status, Status::kOk);
  CHECK_EQ(s.stat("budget_registered_bytes_used"), 2 * kMiB);
  ::close(fd);
}

TEST(too_many_buffers_are_no_bad_request_and_are_counted_for_themselves) {
  BudgetLimits limits;
  limits.registered_buffers_max = 3;
  Served s(limits);
  DataClient one(s.options.unix_path), other(s.options.unix_path);
  const int fd = memfd(4096, true);
  for (int i = 0; i < 2; ++i) CHECK_EQ(register_with(one, fd, 4096).status, Status::kOk);
  CHECK_EQ(register_with(other, fd, 4096).status, Status::kOk);
  CHECK_EQ(register_with(other, fd, 4096).status, Status::kTooLarge);
  CHECK_EQ(s.server->stats().at("bad_requests"), uint64_t{0});
  CHECK_EQ(s.stat("budget_registered_buffers_refused"), uint64_t{1});
  ::close(fd);
}

TEST(connections_are_told_with_their_limit) {
  Served s;
  CHECK_EQ(s.stat("budget_connections_limit"), uint64_t{1024});
  CHECK_EQ(s.stat("budget_ungreeted_limit"), uint64_t{512});
  {
    DataClient client(s.server->tcp_port());
    CHECK_EQ(s.stat("budget_connections_used"), uint64_t{1});
    CHECK_EQ(s.stat("budget_ungreeted_used"), uint64_t{0});
  }
  CHECK(Served::comes_true([&] { return s.stat("budget_connections_used") == 0; }));
}

TEST_MAIN()
