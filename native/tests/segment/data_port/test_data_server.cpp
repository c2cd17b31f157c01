#include <atomic>
#include <cstdio>
#include <random>
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

struct Served {
  explicit Served(uint64_t capacity_bytes = 8 << 20, uint64_t large_body_bytes_max = 64 << 20)
      : store(std::make_shared<SegmentStore>(with_bodies(capacity_bytes, large_body_bytes_max))),
        server(store, tcp_only()) {}
  static SegmentStoreOptions with_bodies(uint64_t capacity_bytes, uint64_t large_body_bytes_max) {
    SegmentStoreOptions options = small_store(capacity_bytes);
    options.budgets.body_bytes_max = large_body_bytes_max;
    return options;
  }
  static DataServerOptions tcp_only() {
    DataServerOptions options;
    options.tcp_host = "127.0.0.1";
    return options;
  }
  bool comes_true(const char* name, uint64_t value) const {
    const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(10);
    while (store->stats().at(name) != value) {
      if (SegmentStore::Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  std::shared_ptr<SegmentStore> store;
  DataServer server;
};

static std::vector<std::string> names(const std::string& prefix, int count) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.push_back(prefix + std::to_string(i));
  return out;
}

// The number of entries answered OK with exactly their bytes; -1 when any OK entry has others.
static int right_entries(const DataReply& reply, const std::vector<std::string>& wanted) {
  if (reply.status != Status::kOk) return -1;
  int right = 0;
  size_t at = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const uint8_t* entry = &reply.fields[8 + 16 * i];
    uint32_t length;
    std::memcpy(&length, entry + 4, 4);
    if (static_cast<Status>(entry[0]) != Status::kOk) continue;
    const std::vector<uint8_t> expected = content(wanted[i], length);
    if (at + length > reply.payload.size() || std::memcmp(&reply.payload[at], expected.data(), length) != 0)
      return -1;
    at += length;
    ++right;
  }
  return at == reply.payload.size() ? right : -1;
}

TEST(batches_of_small_and_large_objects_round_trip) {
  Served s(64 << 20);
  DataClient client(s.server.tcp_port());
  for (const uint32_t length : {1u, 700u, 4096u, 65537u, 300000u}) {
    const auto batch = names("object of " + std::to_string(length) + " ", 128);
    const DataReply put = client.call(put_frame(batch, length));
    CHECK(put.status == Status::kOk && put.statuses() == std::vector<uint8_t>(128, 0));
    CHECK_EQ(right_entries(client.call(DataClient::frame(Op::kGet, get_body(Keys(batch)))), batch), 128);
  }
}

TEST(more_entries_than_one_gather_can_take_round_trip) {
  Served s(32 << 20);  // a slot for each: there is one for 8 KiB
  DataClient client(s.server.tcp_port());
  const auto batch = names("many ", 900);
  const auto more = names("more ", 900);
  std::vector<std::string> all = batch;
  all.insert(all.end(), more.begin(), more.end());
  CHECK(client.call(put_frame(all, 333)).statuses() == std::vector<uint8_t>(all.size(), 0));
  CHECK_EQ(right_entries(client.call(DataClient::frame(Op::kGet, get_body(Keys(all)))), all), 1800);
}

TEST(an_entry_with_a_wrong_digest_is_refused_alone) {
  Served s;
  DataClient client(s.server.tcp_port());
  const auto batch = names("d", 4);
  CHECK(client.call(put_frame(batch, 5000, 2)).statuses() == std::vector<uint8_t>({5, 5, 0, 0}));
  CHECK_EQ(right_entries(client.call(DataClient::frame(Op::kGet, get_body(Keys(batch)))), batch), 2);
}

TEST(writers_killed_at_any_point_leave_no_trace) {
  Served s;
  const auto batch = names("k", 3);
  const std::vector<uint8_t> whole = put_frame(batch, 100000);
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  for (int round = 0; round < 25; ++round) {
    DataClient writer(s.server.tcp_port());
    writer.send({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(rng() % whole.size())});
  }
  CHECK(s.comes_true("used_bytes", 0));
  CHECK_EQ(s.store->journal().last_seq(), uint64_t{0});
  DataClient client(s.server.tcp_port());
  CHECK(client.call(put_frame(batch, 100000)).statuses() == std::vector<uint8_t>(3, 0));
}

TEST(readers_killed_mid_reply_give_their_slots_back) {
  Served s(16 << 20);
  const auto batch = names("r", 8);
  {
    DataClient client(s.server.tcp_port());
    client.call(put_frame(batch, 1000000));
    client.send(DataClient::frame(Op::kGet, get_body(Keys(batch))));
  }
  DataClient client(s.server.tcp_port());
  // Only an object that nobody reads frees its memory when it is removed.
  wire::Writer remove;
  remove.u32(0).u32(1000);
  write_key_block(remove, Keys(batch).block());
  CHECK(client.call(DataClient::frame(Op::kRemove, remove)).statuses() == std::vector<uint8_t>(8, 0));
  CHECK(s.comes_true("used_bytes", 0));
}

TEST(several_connections_putting_one_batch_seal_each_object_once) {
  Served s;
  const auto batch = names("same ", 16);
  std::atomic<int> sealed{0}, existed{0};
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i)
    writers.emplace_back([&] {
      DataClient client(s.server.tcp_port());
      for (const uint8_t status : client.call(put_frame(batch, 40000)).statuses()) {
        sealed += status == 0;
        existed += status == 2;
      }
    });
  for (std::thread& w : writers) w.join();
  CHECK_EQ(sealed.load(), 16);
  CHECK_EQ(existed.load(), 48);
  CHECK_EQ(s.store->stats().at("object_count"), uint64_t{16});
}

TEST(overrunning_the_pool_with_readers_serves_right_bytes_or_misses) {
  Served s(2 << 20);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (unsigned r = 0; r < 2; ++r)
    readers.emplace_back([&, r] {
      std::mt19937 rng(r);
      DataClient client(s.server.tcp_port());
      while (!done.load()) {
        std::vector<std::string> wanted;
        for (int i = 0; i < 8; ++i) wanted.push_back(std::to_string(rng() % 240));
        wrong += right_entries(client.call(DataClient::frame(Op::kGet, get_body(Keys(wanted)))), wanted) < 0;
      }
    });
  DataClient writer(s.server.tcp_port());
  for (int first = 0; first < 240; first += 8) {
    std::vector<std::string> batch;
    for (int i = first; i < first + 8; ++i) batch.push_back(std::to_string(i));
    CHECK(writer.call(put_frame(batch, 27000 + static_cast<uint32_t>(first))).statuses() ==
          std::vector<uint8_t>(8, 0));
  }
  done = true;
  for (std::thread& r : readers) r.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(a_committed_put_waits_for_the_acknowledgement) {
  Served s;
  std::thread directory([&] {
    const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(10);
    while (s.store->journal().last_seq() < 5 && SegmentStore::Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    s.store->journal().drain(100);
    s.store->journal().ack(5);
  });
  DataClient client(s.server.tcp_port());
  CHECK(client.call(put_frame(names("c", 5), 100, 0, 1)).status == Status::kOk);
  directory.join();
  const DataReply late = client.call(put_frame(names("late", 1), 100, 0, 1));
  CHECK(late.status == Status::kNotCommitted && late.statuses() == std::vector<uint8_t>(1, 0));
}

TEST(a_commit_waits_for_what_any_connection_has_sealed_and_refuses_a_number_never_given) {
  Served served;
  DataClient writer(served.server.tcp_port()), committer(served.server.tcp_port());
  const DataReply put = writer.call(put_frame(names("c", 3), 4096));
  CHECK_EQ(put.journal_seq(), 3u);
  // What is there already is durable by the number of whoever put it.
  CHECK_EQ(committer.call(put_frame({"c1"}, 4096)).journal_seq(), served.store->journal().last_seq() - 1);
  const auto commit = [](uint64_t seq, uint32_t timeout_ms) {
    wire::Writer body;
    body.u64(seq).u32(timeout_ms).u32(0);
    return DataClient::frame(Op::kCommit, body);
  };
  CHECK(committer.call(commit(3, 30)).status == Status::kNotCommitted);
  CHECK_EQ(served.store->stats().at("not_committed"), 1u);
  CHECK(committer.call(commit(4, 10000)).status == Status::kBadRequest);
  const auto batch = served.store->journal().drain(100);
  CHECK(batch.has_value());
  committer.send(commit(3, 10000));
  served.store->journal().ack(batch->last_seq);
  CHECK(committer.receive().status == Status::kOk);
  CHECK(writer.call(commit(3, 0)).status == Status::kOk);
}

TEST(large_request_bodies_have_one_budget_and_small_ones_need_none) {
  Served s(8 << 20, 4 << 20);
  const auto pins = [](int keys) {
    return DataClient::frame(Op::kPin, two_numbers_and_keys(0, Keys(names("key ", keys))));
  };
  const std::vector<uint8_t> one_mib = pins(30000), small = pins(1000);
  DataClient small_one(s.server.tcp_port());
  {
    DataClient hog(s.server.tcp_port());
    wire::Writer announced;
    announced.zeros(8 << 20);
    const auto whole = DataClient::frame(Op::kPin, announced);
    hog.send({whole.begin(), whole.begin() + (3 << 20)});
    const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(10);
    while (s.server.stats().at("large_body_bytes") < 4 << 20 && SegmentStore::Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    DataClient second(s.server.tcp_port());
    CHECK_EQ(second.call(one_mib).status, Status::kUnavailable);
    CHECK_EQ(small_one.call(small).statuses().size(), size_t{1000});
  }
  const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(10);
  Status status = Status::kUnavailable;
  while (status != Status::kOk && SegmentStore::Clock::now() < deadline)
    status = DataClient(s.server.tcp_port()).call(one_mib).status;
  CHECK_EQ(status, Status::kOk);
  CHECK_EQ(small_one.call(one_mib).statuses().size(), size_t{30000});
}

TEST(stop_in_the_middle_of_traffic_ends_everything) {
  Served s;
  std::atomic<bool> done{false};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i)
    clients.emplace_back([&, i] {
      try {
        DataClient client(s.server.tcp_port());
        for (int round = 0; !done.load(); ++round)
          client.call(put_frame(names(std::to_string(i) + " " + std::to_string(round) + " ", 4), 50000));
      } catch (const std::runtime_error&) {  // what stop() does to a connection
      }
    });
  CHECK([&] {
    const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(10);
    while (s.store->stats().at("puts") < 20 && SegmentStore::Clock::now() < deadline)
      std::this_thread::yield();
    return s.store->stats().at("puts") >= 20;
  }());
  s.server.stop();
  s.server.stop();
  done = true;
  for (std::thread& c : clients) c.join();
  CHECK_EQ(s.server.stats().at("connections"), uint64_t{0});
  CHECK_EQ(s.server.stats().at("internal_errors"), uint64_t{0});
}

TEST_MAIN()
