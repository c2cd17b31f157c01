// The whole client against real segments and a real index.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "client/page_client.hpp"
#include "client/page_client_fixture.hpp"
#include "client/shared_buffer.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

constexpr const char* kTcpGet = "transport_tcp_bytes_get";
constexpr const char* kSameHostGet = "transport_same_host_bytes_get";
constexpr const char* kPutPulled = "put_pulled_bytes";

void round_trip(PageClientOptions options, bool with_unix, bool registered, const char* get_path,
                const char* put_path) {
  options.run_bytes = 65536;
  options.transport_options["put_digests"] = "true";
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
  for (const char* other : {kTcpGet, kSameHostGet}) CHECK_EQ(f.count(other) > 0, other == get_path);
  if (with_unix) CHECK_EQ(f.count(kPutPulled) > 0, registered);
  CHECK_EQ(
      f.count(Counter::kTimeouts) + f.count(Counter::kProtocolErrors) + f.count(Counter::kInternalErrors),
      0u);
}

}  // namespace

TEST(objects_of_odd_sizes_and_many_pieces_come_back_over_tcp) {
  round_trip(tcp_only(), false, false, kTcpGet, "transport_tcp_bytes_put");
}

TEST(objects_put_from_plain_memory_come_back_on_the_same_host) {
  round_trip(client_options(), true, false, kSameHostGet, "transport_same_host_bytes_put");
}

TEST(objects_pulled_out_of_a_shared_buffer_come_back_on_the_same_host) {
  round_trip(client_options(), true, true, kSameHostGet, kPutPulled);
}

TEST(a_bumped_namespace_is_empty_for_a_client_that_did_not_bump_it) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1);
  f.open();
  PageClient second({{"127.0.0.1", f.directory.port(), ""}}, client_options());
  const auto opened = second.open_namespace(f.kIdentity, "m", Deadline::after_ms(kPlentyMs));
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

TEST(eight_threads_share_one_client) {
  PageClientOptions options = client_options();
  options.run_bytes = 65536;
  options.connect_timeout_ms = kPlentyMs;  // a busy machine must not pass for a peer that is down
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

TEST(a_closed_namespace_answers_as_an_empty_store) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(5000);
  Batch b(1, 1, 5000, 1, 22, memory.data());
  f.put(b);
  f.client.close_namespace(f.handle);
  CHECK(f.client.valid_handle(f.handle));
  CHECK(!f.client.valid_handle(f.handle + 1) && !f.client.valid_handle(-1));
  f.get(b);
  CHECK(b.all(Status::kUnavailable));
  f.put(b);
  CHECK(b.all(Status::kUnavailable));
  CHECK(f.client.bump_namespace(f.handle, Deadline::after_ms(kPlentyMs)) == Status::kUnavailable);
}

TEST(a_master_that_had_no_time_to_answer_is_not_said_to_be_silent) {
  FrameServer silent([](int fd) {
    uint8_t byte;
    while (::read(fd, &byte, 1) > 0) {
    }
  });
  const PageClientOptions options = client_options();
  const auto troubles = [&](int64_t deadline_ms) {
    PageClient client({{"127.0.0.1", silent.port(), ""}}, options);
    client.open_namespace("{}", "n", Deadline::after_ms(deadline_ms));
    return client.counters().troubles.all();
  };
  CHECK(troubles(1).empty());
  const auto said = troubles(1000);
  CHECK_EQ(said.size(), size_t{1});
  CHECK(said[0].trouble == Trouble::kNoAnswer);
}

TEST(a_master_that_closes_before_it_greets_is_not_called_a_stranger) {
  FrameServer closing([](int) {});
  PageClient client({{"127.0.0.1", closing.port(), ""}}, client_options());
  client.open_namespace("{}", "n", Deadline::after_ms(1000));
  const auto said = client.counters().troubles.all();
  CHECK_EQ(said.size(), size_t{1});
  CHECK(said[0].trouble == Trouble::kClosed);
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

TEST(memory_that_is_no_longer_the_registered_file_is_refused_where_digests_are_sent) {
  PageClientOptions options = client_options();
  options.transport_options["put_digests"] = "true";
  Fixture f(options);
  TestSegment segment(f.directory, 0, 1, socket_path());
  f.open();
  constexpr size_t kBytes = 1 << 20;
  SharedBuffer buffer(kBytes);
  auto* memory = static_cast<uint8_t*>(buffer.data());
  fill(memory, kBytes, 31);
  Batch good(4, 1, kBytes / 4, 2, 32, memory);
  f.put(good);
  CHECK(good.all(Status::kOk));
  CHECK_EQ(f.count("put_pulled_bytes"), uint64_t{kBytes});
  // Somebody maps something else there without taking the registration back.
  CHECK(::mmap(memory, kBytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
        memory);
  fill(memory, kBytes, 33);
  Batch stale(4, 1, kBytes / 4, 2, 34, memory);
  f.put(stale);
  CHECK(stale.all(Status::kDigestMismatch));
  f.get(stale);
  CHECK(stale.none_ok());
}

TEST(only_memory_that_is_a_shared_mapping_of_the_file_from_its_start_is_registered_with_it) {
  Fixture f;
  constexpr size_t kPage = 4096, kBytes = 8 * kPage;
  const int fd = ::memfd_create("kvstore-test", MFD_CLOEXEC);
  const int other = ::memfd_create("kvstore-test", MFD_CLOEXEC);
  CHECK(::ftruncate(fd, kBytes) == 0 && ::ftruncate(other, kBytes) == 0);
  const auto map = [&](int flags, int file, off_t offset) {
    return static_cast<uint8_t*>(
        ::mmap(nullptr, kBytes - 2 * kPage, PROT_READ | PROT_WRITE, flags, file, offset));
  };
  const auto registers = [&](const uint8_t* at, size_t size, int file) {
    const auto address = reinterpret_cast<uint64_t>(at);
    const bool done = f.client.register_memory(address, size, file);
    if (done) f.client.unregister(address);
    return done;
  };
  constexpr size_t kMapped = kBytes - 2 * kPage;
  uint8_t* const shared = map(MAP_SHARED, fd, 0);
  CHECK(registers(shared, kMapped, fd));
  CHECK(registers(shared, kMapped - kPage, fd));
  CHECK(::mprotect(shared + kPage, kPage, PROT_READ) == 0);  // now three mappings, of one file all the same
  CHECK(registers(shared, kMapped, fd));
  CHECK(!registers(shared, kMapped, other));
  CHECK(!registers(shared + kPage, kMapped - kPage, fd));  // not from the start of the file
  CHECK(!registers(shared, kBytes, fd));                   // mapped in part
  CHECK(!registers(map(MAP_SHARED, fd, kPage), kMapped, fd));
  CHECK(!registers(map(MAP_PRIVATE, fd, 0), kMapped, fd));
  CHECK(!registers(map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), kMapped, fd));
  ::close(fd);
  ::close(other);
}

TEST(what_is_handed_to_segments_can_be_read_only) {
  SharedBuffer buffer(4096);
  const auto range = RegisteredMemory::shared_buffers().find(reinterpret_cast<uint64_t>(buffer.data()));
  CHECK(range != nullptr);
  CHECK_EQ(::fcntl(range->fd, F_GETFL) & O_ACCMODE, O_RDONLY);
}

TEST_MAIN()
