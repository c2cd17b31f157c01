// ATTACH, LOCATE, REGISTER, PULL over the unix socket.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
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

struct Served {
  Served() : store(std::make_shared<SegmentStore>(small_store(4 << 20))) {
    char name[] = "/tmp/kvstore-test-XXXXXX";
    directory = ::mkdtemp(name);
    options.tcp_host = "127.0.0.1";
    options.unix_path = directory + "/data.sock";
    server = std::make_unique<DataServer>(store, options);
  }
  ~Served() {
    server.reset();
    ::rmdir(directory.c_str());
  }
  std::string directory;
  std::shared_ptr<SegmentStore> store;
  DataServerOptions options;
  std::unique_ptr<DataServer> server;
};

// A client's view of the pool.
struct Attached {
  explicit Attached(DataClient& client) {
    const DataReply reply = client.call(DataClient::frame(Op::kAttach, wire::Writer()));
    wire::Reader fields(reply.fields.data(), reply.fields.size());
    bytes = fields.u64("map_bytes");
    table_offset = fields.u64("table_offset");
    fields.u32("slot_count");
    slot_bytes = fields.u32("slot_bytes");
    descriptor = reply.descriptor;
    void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    base = map == MAP_FAILED ? nullptr : static_cast<const uint8_t*>(map);
  }
  ~Attached() {
    if (base != nullptr) ::munmap(const_cast<uint8_t*>(base), bytes);
    ::close(descriptor);
  }
  uint64_t generation(uint32_t slot) const {
    const auto* header =
        reinterpret_cast<const SlotHeader*>(base + table_offset + uint64_t{slot} * slot_bytes);
    return header->generation.load(std::memory_order_acquire);
  }
  uint64_t bytes = 0, table_offset = 0;
  uint32_t slot_bytes = 0;
  int descriptor = -1;
  const uint8_t* base = nullptr;
};

struct LocatedEntry {
  uint64_t offset, generation;
  uint32_t length, digest, slot;
  Status status;
};

static LocatedEntry locate(DataClient& client, const std::string& name, uint32_t hold_ms, uint32_t id) {
  const auto body = two_numbers_and_keys(hold_ms, Keys({name}));
  const DataReply reply = client.call(DataClient::frame(Op::kLocate, body, {}, id));
  wire::Reader fields(reply.fields.data() + 8, reply.fields.size() - 8);
  LocatedEntry e{};
  e.offset = fields.u64("offset"), e.generation = fields.u64("generation");
  e.length = fields.u32("length"), e.digest = fields.u32("digest"), e.slot = fields.u32("slot");
  e.status = static_cast<Status>(fields.u8("status"));
  return e;
}

// A memfd with `bytes` of content(name).
static int memory_file(const std::string& name, size_t bytes, bool sealed) {
  const int fd = ::memfd_create("test", MFD_CLOEXEC | (sealed ? MFD_ALLOW_SEALING : 0u));
  const std::vector<uint8_t> data = content(name, bytes);
  if (::pwrite(fd, data.data(), bytes, 0) != static_cast<ssize_t>(bytes)) throw std::runtime_error("pwrite");
  if (sealed && ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) throw std::runtime_error("seal");
  return fd;
}

static wire::Writer register_body(uint64_t bytes) {
  wire::Writer body;
  body.u64(bytes).u32(0).u32(0);
  return body;
}

struct Piece {
  uint64_t offset;
  uint32_t size;
};

// A PULL of one object made of `pieces`.
static std::vector<uint8_t> pull_frame(const std::string& name, uint32_t buffer_id,
                                       const std::vector<Piece>& pieces, int length_error = 0) {
  uint32_t length = 0;
  for (const Piece& p : pieces) length += p.size;
  wire::Writer body = put_body(Keys({name}), {length + static_cast<uint32_t>(length_error)});
  body.u32(buffer_id).u32(static_cast<uint32_t>(pieces.size()));
  for (const Piece& p : pieces) body.u64(p.offset);
  for (const Piece& p : pieces) body.u32(p.size);
  return DataClient::frame(Op::kPull, body);
}

TEST(an_attached_client_copies_what_it_located_and_can_write_nothing) {
  Served s;
  DataClient client(s.options.unix_path);
  client.call(put_frame({"page"}, 70000));
  const Attached pool(client);
  CHECK(pool.base != nullptr);
  const LocatedEntry e = locate(client, "page", 10000, 5);
  CHECK_EQ(e.status, Status::kOk);
  CHECK(std::memcmp(pool.base + e.offset, content("page", 70000).data(), 70000) == 0);
  CHECK_EQ(crc32c(0, pool.base + e.offset, e.length), e.digest);
  CHECK_EQ(pool.generation(e.slot), e.generation);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, pool.descriptor, 0) == MAP_FAILED);
  CHECK_EQ(locate(client, "absent", 10000, 6).status, Status::kMiss);
}

static wire::Writer unpin_body(uint32_t id) {
  wire::Writer body;
  body.u32(id);
  return body;
}

TEST(a_hold_ends_with_unpin_with_its_time_or_with_the_connection) {
  Served s;
  auto client = std::make_unique<DataClient>(s.options.unix_path);
  const Attached pool(*client);
  for (int way = 0; way < 3; ++way) {
    client->call(put_frame({"page"}, 70000));
    const LocatedEntry e = locate(*client, "page", way == 1 ? 30 : 60000, 9);
    DataClient other(s.options.unix_path);
    wire::Writer remove;
    remove.u32(0).u32(1000);
    write_key_block(remove, Keys({"page"}).block());
    CHECK(other.call(DataClient::frame(Op::kRemove, remove)).statuses() == std::vector<uint8_t>(1, 0));
    if (way != 1) {
      CHECK_EQ(pool.generation(e.slot), e.generation);  // held: neither slot nor bytes change
      CHECK_EQ(crc32c(0, pool.base + e.offset, e.length), e.digest);
      CHECK(s.store->stats().at("used_bytes") > 0);
    }
    if (way == 0) client->send(DataClient::frame(Op::kUnpin, unpin_body(9)));
    if (way == 2) client.reset();
    const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(10);
    while (s.store->stats().at("used_bytes") > 0 && SegmentStore::Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_EQ(s.store->stats().at("used_bytes"), uint64_t{0});
    CHECK(pool.generation(e.slot) > e.generation);
  }
}

TEST(a_reader_that_checks_the_generation_never_takes_wrong_bytes) {
  Served s;
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0}, copied{0}, moved_on{0};
  std::thread reader([&] {
    DataClient client(s.options.unix_path);
    const Attached pool(client);
    std::vector<uint8_t> copy;
    for (uint32_t i = 0; !done.load() || copied.load() == 0; ++i) {
      const std::string name = std::to_string(i % 150);
      const LocatedEntry e =
          locate(client, name, i % 2 == 0 ? 0 : 1000, i + 10);  // half of them with no hold at all
      client.send(DataClient::frame(Op::kUnpin, unpin_body(i + 10)));
      if (e.status != Status::kOk) continue;
      if (i % 16 == 0) {  // long enough for the slot to be somebody else's
        const uint64_t puts = s.store->stats().at("puts");
        while (!done.load() && s.store->stats().at("puts") < puts + 100)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      copy.assign(pool.base + e.offset, pool.base + e.offset + e.length);
#if !defined(__SANITIZE_THREAD__)  // which has no model of fences
      std::atomic_thread_fence(std::memory_order_acquire);
#endif
      if (pool.generation(e.slot) != e.generation) {
        ++moved_on;
      } else {
        wrong += copy != content(name, e.length);
        ++copied;
      }
    }
  });
  DataClient writer(s.options.unix_path);
  // Until the race has been lost at least once, which is what this is about.
  const auto deadline = SegmentStore::Clock::now() + std::chrono::seconds(20);
  for (int i = 0; i < 450 || (moved_on.load() == 0 && SegmentStore::Clock::now() < deadline); ++i)
    writer.call(put_frame({std::to_string(i % 150)}, 60000 + static_cast<uint32_t>(i % 7)));
  done = true;
  reader.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK(moved_on.load() > 0);
  CHECK(copied.load() > 0);
}

TEST(a_sealed_buffer_is_mapped_an_unsealed_one_read_and_both_are_pulled_from) {
  Served s;
  DataClient client(s.options.unix_path);
  for (const bool sealed : {true, false}) {
    const int fd = memory_file("buffer", 600000, sealed);
    const DataReply made = client.call(DataClient::frame(Op::kRegister, register_body(600000)), fd);
    ::close(fd);  // the segment has its own
    CHECK_EQ(made.status, Status::kOk);
    wire::Reader fields(made.fields.data(), made.fields.size());
    const uint32_t id = fields.u32("buffer_id");
    CHECK_EQ(fields.u32("mode"), sealed ? 1u : 2u);
    const std::string name = sealed ? "mapped" : "read";
    const DataReply pulled =
        client.call(pull_frame(name, id, {{300000, 250001}, {0, 7}, {599999, 1}, {9, 0}}));
    CHECK(pulled.status == Status::kOk && pulled.statuses() == std::vector<uint8_t>(1, 0));
    const std::vector<uint8_t> whole = content("buffer", 600000);
    std::vector<uint8_t> expected(whole.begin() + 300000, whole.begin() + 550001);
    expected.insert(expected.end(), whole.begin(), whole.begin() + 7);
    expected.push_back(whole.back());
    CHECK(client.call(DataClient::frame(Op::kGet, get_body(Keys({name})))).payload == expected);
    wire::Writer unregister;
    unregister.u32(id);
    CHECK_EQ(client.call(DataClient::frame(Op::kUnregister, unregister)).status, Status::kOk);
    CHECK_EQ(client.call(pull_frame("after", id, {{0, 10}})).status, Status::kBadRequest);
  }
}

TEST(what_lies_outside_a_buffer_is_refused_before_anything_is_copied) {
  Served s;
  DataClient client(s.options.unix_path);
  const int fd = memory_file("buffer", 8192, true);
  client.call(DataClient::frame(Op::kRegister, register_body(8192)), fd);
  const auto status = [&](const std::vector<uint8_t>& frame) { return client.call(frame).status; };
  CHECK_EQ(status(pull_frame("x", 1, {{0, 100}, {8192, 1}})), Status::kBadRequest);
  CHECK_EQ(status(pull_frame("x", 1, {{8000, 193}})), Status::kBadRequest);
  CHECK_EQ(status(pull_frame("x", 1, {{UINT64_MAX, 1}})), Status::kBadRequest);
  CHECK_EQ(status(pull_frame("x", 1, {{UINT64_MAX - 5, 10}})), Status::kBadRequest);
  CHECK_EQ(status(pull_frame("x", 2, {{0, 1}})), Status::kBadRequest);
  CHECK_EQ(status(pull_frame("x", 1, {{0, 100}}, 1)), Status::kBadRequest);
  CHECK_EQ(s.store->stats().at("used_bytes"), uint64_t{0});
  CHECK_EQ(status(pull_frame("x", 1, {{0, 8192}})), Status::kOk);
  ::close(fd);
}

TEST(a_file_that_shrinks_after_it_was_registered_harms_nobody) {
  Served s;
  DataClient client(s.options.unix_path);
  const int fd = memory_file("buffer", 100000, false);
  CHECK_EQ(client.call(DataClient::frame(Op::kRegister, register_body(100000)), fd).status, Status::kOk);
  CHECK_EQ(::ftruncate(fd, 4096), 0);
  CHECK_EQ(client.call(pull_frame("x", 1, {{50000, 1000}})).status, Status::kBadRequest);
  CHECK_EQ(s.store->stats().at("used_bytes"), uint64_t{0});
  ::close(fd);
}

TEST(bad_registrations_are_refused) {
  Served s;
  DataClient client(s.options.unix_path);
  const int fd = memory_file("buffer", 4096, true);
  const auto status = [&](uint64_t bytes, int pass) {
    return client.call(DataClient::frame(Op::kRegister, register_body(bytes)), pass).status;
  };
  CHECK_EQ(status(4096, -1), Status::kBadRequest);
  CHECK_EQ(status(0, fd), Status::kBadRequest);
  CHECK_EQ(status(4097, fd), Status::kBadRequest);
  int pipe_ends[2];
  CHECK_EQ(::pipe(pipe_ends), 0);
  CHECK_EQ(status(10, pipe_ends[0]), Status::kBadRequest);
  CHECK_EQ(status(4096, fd), Status::kOk);
  for (const int end : {fd, pipe_ends[0], pipe_ends[1]}) ::close(end);
}

TEST(same_host_ops_are_refused_over_tcp) {
  Served s;
  DataClient client(s.server->tcp_port());
  CHECK_EQ(client.call(DataClient::frame(Op::kAttach, wire::Writer())).status, Status::kBadRequest);
  CHECK_EQ(client.call(DataClient::frame(Op::kRegister, register_body(10))).status, Status::kBadRequest);
  CHECK_EQ(client.call(pull_frame("x", 1, {{0, 1}})).status, Status::kBadRequest);
}

TEST(the_socket_file_is_private_a_stale_one_is_replaced_and_a_live_one_is_not) {
  Served s;
  struct stat status{};
  CHECK_EQ(::stat(s.options.unix_path.c_str(), &status), 0);
  CHECK_EQ(status.st_mode & 0777u, 0600u);
  CHECK_THROWS(DataServer(s.store, s.options), std::system_error);
  DataClient still(s.options.unix_path);
  s.server.reset();
  CHECK(::stat(s.options.unix_path.c_str(), &status) != 0);
  {  // a socket file that nobody listens on
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, s.options.unix_path.data(), s.options.unix_path.size());
    CHECK_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ::close(fd);
  }
  s.server = std::make_unique<DataServer>(s.store, s.options);
  DataClient again(s.options.unix_path);
}

TEST_MAIN()
