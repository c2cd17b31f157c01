// The client's same-host transport against a real segment, where timing or somebody else's memory could make it wrong.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <list>
#include <memory>
#include <thread>

#include "client/page_client_fixture.hpp"
#include "client/shared_buffer.hpp"
#include "segment/data_port_client.hpp"
#include "transports/same_host/client/attached_pool.hpp"
#include "transports/same_host/client/staged_sender.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

// Memory whose second half runs a function when it is first touched, on the thread that touches it.
class TrippedMemory {
 public:
  explicit TrippedMemory(size_t half_bytes) : half_bytes_(half_bytes) {
    base_ = static_cast<uint8_t*>(
        ::mmap(nullptr, 2 * half_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(base_ != MAP_FAILED && ::mprotect(base_ + half_bytes, half_bytes, PROT_NONE) == 0);
    armed = this;
    struct sigaction action{};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO;
    CHECK_EQ(::sigaction(SIGSEGV, &action, &before_), 0);
  }
  ~TrippedMemory() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    armed = nullptr;
    ::munmap(base_, 2 * half_bytes_);
  }
  uint8_t* data() const { return base_; }
  std::atomic<bool> tripped{false}, go_on{false};

 private:
  static TrippedMemory* armed;
  static void on_fault(int, siginfo_t* info, void*) {
    TrippedMemory* const memory = armed;
    const auto* at = static_cast<const uint8_t*>(info->si_addr);
    if (memory == nullptr || at < memory->base_ || at >= memory->base_ + 2 * memory->half_bytes_) ::abort();
    memory->tripped.store(true);
    while (!memory->go_on.load()) ::poll(nullptr, 0, 1);
    ::mprotect(memory->base_ + memory->half_bytes_, memory->half_bytes_, PROT_READ | PROT_WRITE);
  }

  uint8_t* base_;
  const size_t half_bytes_;
  struct sigaction before_{};
};
TrippedMemory* TrippedMemory::armed = nullptr;

template <typename Condition>
bool comes_true(const Condition& condition) {
  const Deadline until = Deadline::after_ms(kPlentyMs);
  while (!condition()) {
    if (until.expired()) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace

TEST(a_slot_that_is_reused_in_the_middle_of_a_copy_is_a_miss_and_no_wrong_digest) {
  constexpr size_t kHalf = 256u << 10, kBytes = 2 * kHalf;
  Fixture f;
  TestSegment segment(f.directory, 0, 1, socket_path(), 4u << 20);
  f.open();
  std::vector<uint8_t> memory(kBytes);
  fill(memory.data(), memory.size(), 1);
  Batch page(1, 1, kBytes, 1, 1, memory.data());
  f.put(page);
  CHECK(page.all(Status::kOk));
  TrippedMemory target(kHalf);
  Batch in(1, 1, kBytes, 2, 1, target.data());
  std::thread others([&] {
    CHECK(comes_true([&] { return target.tripped.load(); }));
    // The hold lasts a little longer than the reader's deadline: after it the memory is another page's.
    KeyBlock keys = page.keys;
    keys.ns = f.client.namespace_state(f.handle).ns;
    const uint64_t used = segment.store().stats().at("used_bytes");
    segment.store().remove(keys);
    CHECK(comes_true([&] { return segment.store().stats().at("used_bytes") < used; }));
    std::vector<uint8_t> other(kBytes);
    for (unsigned i = 0; i < 7; ++i) {
      fill(other.data(), other.size(), 100 + i);
      Batch b(1, 1, kBytes, 1, 100 + i, other.data());
      f.put(b);
      CHECK(b.all(Status::kOk));
    }
    target.go_on = true;
  });
  f.get(in, 300);
  others.join();
  CHECK(in.all(Status::kMiss));
  CHECK_EQ(f.count(Counter::kGenerationMismatches), 1u);
  CHECK_EQ(f.count(Counter::kDigestMismatches), 0u);
}

// Its memory stays mapped here, and nobody says any more what of it has been removed.
TEST(what_is_copied_while_its_segment_dies_is_not_served) {
  constexpr size_t kHalf = 256u << 10, kBytes = 2 * kHalf;
  Fixture f;
  auto segment = std::make_unique<TestSegment>(f.directory, 0, 1, socket_path(), 4u << 20);
  f.open();
  std::vector<uint8_t> memory(kBytes);
  fill(memory.data(), memory.size(), 1);
  Batch page(1, 1, kBytes, 1, 1, memory.data());
  f.put(page);
  CHECK(page.all(Status::kOk));
  TrippedMemory target(kHalf);
  Batch in(1, 1, kBytes, 2, 1, target.data());
  std::thread others([&] {
    CHECK(comes_true([&] { return target.tripped.load(); }));
    segment.reset();
    target.go_on = true;
  });
  f.get(in, 1000);
  others.join();
  CHECK(!in.all(Status::kOk));
  CHECK_EQ(f.count(Counter::kDigestMismatches), 0u);
}

TEST(a_pool_that_its_segment_could_shrink_under_a_reader_is_not_mapped) {
  data_codec::PoolGeometry geometry;
  geometry.map_bytes = 1u << 20;
  geometry.slot_count = 16;
  geometry.slot_bytes = 128;
  const auto pool_file = [&](uint64_t bytes, int seals) {
    const int fd = ::memfd_create("kvstore-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    CHECK(seals == 0 || ::fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
  };
  CHECK(AttachedPool::attach(pool_file(1u << 20, F_SEAL_SHRINK), geometry) != nullptr);
  CHECK(AttachedPool::attach(pool_file(1u << 20, 0), geometry) == nullptr);
  CHECK(AttachedPool::attach(pool_file(1u << 20, F_SEAL_GROW), geometry) == nullptr);
  CHECK(AttachedPool::attach(pool_file((1u << 20) - 1, F_SEAL_SHRINK), geometry) == nullptr);
  // A file that outlives its segment has no seals: it is its owner's alone, and in memory.
  const auto named_file = [&](const char* directory, mode_t mode) {
    const int fd = ::open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ::fchmod(fd, mode) == 0 && ::ftruncate(fd, 1 << 20) == 0);
    return fd;
  };
  CHECK(AttachedPool::attach(named_file("/dev/shm", 0600), geometry) != nullptr);
  CHECK(AttachedPool::attach(named_file("/dev/shm", 0620), geometry) == nullptr);
  CHECK(AttachedPool::attach(named_file("/dev/shm", 0602), geometry) == nullptr);
  CHECK(AttachedPool::attach(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC), geometry) == nullptr);
}

TEST(pages_in_ordinary_memory_go_by_shared_memory_and_what_is_too_large_for_it_over_the_socket) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1, socket_path(), 256u << 20);
  f.open();
  const auto round_trip = [&](size_t keys, size_t shards, size_t bytes, size_t pieces, unsigned seed) {
    std::vector<uint8_t> memory(keys * shards * bytes), back(memory.size());
    fill(memory.data(), memory.size(), seed);
    Batch out(keys, shards, bytes, pieces, seed, memory.data()),
        in(keys, shards, bytes, 1, seed, back.data());
    f.put(out);
    CHECK(out.all(Status::kOk));
    f.get(in);
    CHECK(in.all(Status::kOk));
    CHECK(back == memory);
    return memory.size();
  };
  uint64_t staged = 0;
  for (unsigned i = 0; i < 3; ++i) {  // more runs than places, over connections that know each other
    staged += round_trip(100, 1, 65536, 1, 10 + i);
    staged += round_trip(37, 2, 9999, 3, 20 + i);
    staged += round_trip(9, 1, kStagedRunBytesMax, 2, 30 + i);
    CHECK_EQ(f.count("put_staged_bytes"), staged);
    round_trip(2, 1, kStagedRunBytesMax + 1, 1, 40 + i);
    round_trip(3, 1, 5000, 1, 50 + i);
    CHECK_EQ(f.count("put_staged_bytes"), staged);
  }
  CHECK_EQ(f.count("put_pulled_bytes"), 0u);
  CHECK_EQ(segment.server().stats().at("bad_requests"), 0u);
}

TEST(small_pieces_of_a_shared_buffer_are_put_together_and_large_ones_pulled_from_where_they_are) {
  constexpr size_t kBytes = 1 << 20, kKeys = 16, kSmall = kPackedPartBytes / 2, kLarge = kPackedPartBytes;
  Fixture f;
  TestSegment segment(f.directory, 0, 1, socket_path(), 256u << 20);
  f.open();
  SharedBuffer buffer(kKeys * kBytes);
  auto* memory = static_cast<uint8_t*>(buffer.data());
  fill(memory, kKeys * kBytes, 1);
  const std::vector<uint8_t> content(memory, memory + kKeys * kBytes);
  for (const size_t piece : {kSmall, kLarge}) {
    Batch out(kKeys, 1, kBytes, kBytes / piece, static_cast<unsigned>(piece), memory);
    f.put(out);
    CHECK(out.all(Status::kOk));
    std::vector<uint8_t> back(kKeys * kBytes);
    Batch in(kKeys, 1, kBytes, 1, static_cast<unsigned>(piece), back.data());
    f.get(in);
    CHECK(in.all(Status::kOk));
    CHECK(back == content);
    CHECK_EQ(f.count("put_staged_bytes"), kKeys * kBytes);
    CHECK_EQ(f.count("put_pulled_bytes"), piece == kLarge ? kKeys * kBytes : 0u);
  }
}

TEST(more_shared_buffers_than_a_connection_may_register_are_no_bad_requests) {
  constexpr size_t kBytes = 4096, kBuffers = 300;
  Fixture f;
  TestSegment segment(f.directory, 0, 1, socket_path());
  f.open();
  std::list<SharedBuffer> buffers;
  for (unsigned i = 0; i < kBuffers; ++i) {
    buffers.emplace_back(kBytes);
    auto* memory = static_cast<uint8_t*>(buffers.back().data());
    fill(memory, kBytes, i);
    Batch b(1, 1, kBytes, 1, i, memory);
    f.put(b);
    CHECK(b.all(Status::kOk));
  }
  CHECK_EQ(f.count("put_pulled_bytes"), 256u * kBytes);
  CHECK_EQ(f.count("transport_same_host_bytes_put"), kBuffers * kBytes);
  CHECK_EQ(segment.server().stats().at("bad_requests"), 0u);
  buffers.clear();  // room again
  SharedBuffer fresh(kBytes);
  Batch b(1, 1, kBytes, 1, 1000, static_cast<uint8_t*>(fresh.data()));
  f.put(b);
  CHECK_EQ(f.count("put_pulled_bytes"), 257u * kBytes);
}

TEST(a_segment_that_is_asked_for_one_registration_too_many_says_so_and_counts_no_bad_request) {
  Fixture f;
  const std::string path = socket_path();
  TestSegment segment(f.directory, 0, 1, path);
  DataClient client(path);
  const int fd = ::memfd_create("kvstore-test", MFD_CLOEXEC);
  CHECK_EQ(::ftruncate(fd, 4096), 0);
  wire::Writer body;
  body.u64(4096).u32(0).u32(0);
  for (int i = 0; i < 256; ++i)
    CHECK(client.call(DataClient::frame(Op::kRegister, body), fd).status == Status::kOk);
  CHECK(client.call(DataClient::frame(Op::kRegister, body), fd).status == Status::kTooLarge);
  CHECK_EQ(segment.server().stats().at("bad_requests"), 0u);
  ::close(fd);
}

TEST(what_a_segment_does_not_hold_for_now_is_read_over_its_socket) {
  constexpr size_t kBytes = 100000;
  Fixture f;
  const std::string path = socket_path();
  TestSegment segment(f.directory, 0, 1, path);
  f.open();
  std::vector<uint8_t> memory(2 * kBytes, 7), back(2 * kBytes);
  Batch b(2, 1, kBytes, 1, 1, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  // A segment with no room for readers at all but one page's.
  Budget& held = segment.store().budgets().held_bytes;
  held.set_limits(held.limit(), held.limit());
  const uint64_t all_but_one = held.limit() - ExtentAllocator::rounded(kBytes);
  held.take_anyway(all_but_one);
  Batch got(2, 1, kBytes, 1, 1, back.data());
  f.get(got);
  CHECK(got.all(Status::kOk) && back == memory);
  CHECK_EQ(f.count(Counter::kLocatesRefused), 1u);
  CHECK_EQ(f.count("transport_same_host_bytes_get"), 2 * kBytes);
  CHECK(comes_true([&] { return held.used() == all_but_one; }));  // let go when the reply is out
}

TEST(a_writer_that_is_gone_when_its_pull_has_been_copied_has_stored_nothing) {
  Fixture f;
  const std::string path = socket_path();
  SegmentStoreOptions only_on_demand;
  only_on_demand.free_ahead_bytes = 0;
  TestSegment segment(f.directory, 0, 1, path, 4u << 20, {}, only_on_demand);
  constexpr uint32_t kBytes = 512u << 10;
  DataClient reader(path);
  std::vector<std::string> all;
  for (int i = 0; i < 8; ++i) all.push_back("held-" + std::to_string(i));
  DataClient(path).call(put_frame(all, kBytes));
  // Its batch ends with it: others wait a moment only for what an open one may leave.
  CHECK(comes_true([&] { return segment.server().stats().at("connections") == 1; }));
  wire::Writer hold = two_numbers_and_keys(60000, Keys(all));  // nothing of the pool can be evicted
  reader.call(DataClient::frame(Op::kLocate, hold, {}, 77));
  const uint64_t puts = segment.store().stats().at("puts");
  const uint64_t requests = segment.server().stats().at("requests");
  {
    DataClient writer(path);
    const int fd = ::memfd_create("kvstore-test", MFD_CLOEXEC);
    CHECK_EQ(::ftruncate(fd, kBytes), 0);
    wire::Writer body;
    body.u64(kBytes).u32(0).u32(0);
    CHECK(writer.call(DataClient::frame(Op::kRegister, body), fd).status == Status::kOk);
    ::close(fd);
    wire::Writer pull;
    pull.u8(0).u8(0).u16(0).u32(20000);
    const Keys key({"given-up"});
    write_key_block(pull, key.block());
    pull.u32(kBytes).u32(1).u32(1).u64(0).u32(kBytes);
    writer.send(DataClient::frame(Op::kPull, pull));
    CHECK(comes_true([&] { return segment.server().stats().at("requests") == requests + 2; }));
  }  // it waits for room while its writer goes
  wire::Writer unpin;
  unpin.u32(77);
  reader.send(DataClient::frame(Op::kUnpin, unpin));
  CHECK(comes_true([&] { return segment.server().stats().at("connections") == 1; }));
  CHECK_EQ(segment.store().stats().at("puts"), puts);
  CHECK(segment.store().stats().at("evicted_objects") > 0);  // it did get its room
  const auto look = two_numbers_and_keys(0, Keys({"given-up"}));
  CHECK(reader.call(DataClient::frame(Op::kPin, look)).statuses() ==
        std::vector<uint8_t>(1, static_cast<uint8_t>(Status::kMiss)));
}

TEST_MAIN()
