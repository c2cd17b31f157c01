// A process with a store on a pool file is killed at random moments, again and again: the next one serves what was acked, goes on
// with the journal without a hole, and what the journal has told a directory is what the store holds.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "segment/journal_pump.hpp"
#include "segment/object_fixture.hpp"
#include "segment/pool_place.hpp"
#include "segment/store_journal_source.hpp"

using namespace kvstore;
using namespace kvstore::testing;

namespace {

constexpr uint64_t kCapacity = 12u << 20;
constexpr uint32_t kLargeKeys = 300;    // of up to 60 KB, more than fit
constexpr uint32_t kTinyKeys = 20'000;  // more than the first chunk of slots has place for
constexpr int kRounds = 40;

std::string name_of(uint32_t key) { return "key-" + std::to_string(key); }
uint32_t length_of(uint32_t key) { return key < kLargeKeys ? 1 + key * 7919 % 60'000 : 1 + key % 64; }

using Fp = std::pair<uint64_t, uint64_t>;
Fp fp_of(uint32_t key) {
  const Fingerprint fp = Keys({name_of(key)}).block().fingerprints()[0];
  return {fp.lo, fp.hi};
}

// What a master keeps of one segment. It insists on a journal without holes.
struct Directory {
  std::set<Fp> objects;
  uint64_t durable_seq = 0;

  void journal(uint64_t first_seq, uint64_t last_seq, const uint8_t* groups, size_t size) {
    CHECK(first_seq <= durable_seq + 1);
    uint64_t seq = first_seq - 1;
    for (size_t at = 0; at < size;) {
      uint32_t count;
      std::memcpy(&count, groups + at + 4, 4);
      const bool add = groups[at] == static_cast<uint8_t>(JournalOp::kAdd);
      for (uint32_t i = 0; i < count; ++i) {
        if (++seq <= durable_seq) continue;  // told before
        Fp fp;
        std::memcpy(&fp.first, groups + at + 16 + i * 16, 8);
        std::memcpy(&fp.second, groups + at + 24 + i * 16, 8);
        if (add)
          objects.insert(fp);
        else
          objects.erase(fp);
      }
      at += 16 + size_t{count} * 20;
    }
    CHECK_EQ(seq, last_seq);
    durable_seq = std::max(durable_seq, last_seq);
  }
};

SegmentStoreOptions options(const std::string& path) {
  SegmentStoreOptions o;
  o.capacity_bytes = kCapacity;
  o.pool.path = path;
  o.pool_id = {1};
  o.segment_id = {2};
  return o;
}

// ---- the process that is killed

class Pipe {
 public:
  Pipe() { CHECK_EQ(::pipe2(fds_, O_CLOEXEC), 0); }
  ~Pipe() {
    for (const int fd : fds_)
      if (fd >= 0) ::close(fd);
  }
  int read_end() const { return fds_[0]; }
  int write_end() const { return fds_[1]; }
  void close_end(int end) { ::close(std::exchange(fds_[end], -1)); }

 private:
  int fds_[2] = {-1, -1};
};

void write_all(int fd, const void* data, size_t size) {
  for (size_t at = 0; at < size;) {
    const ssize_t n = ::write(fd, static_cast<const uint8_t*>(data) + at, size - at);
    if (n > 0)
      at += static_cast<size_t>(n);
    else if (errno != EINTR)
      ::_exit(3);
  }
}

void put_keys(SegmentStore& store, const std::vector<uint32_t>& keys, uint64_t& last_seq) {
  std::map<uint32_t, std::vector<std::string>> by_length;  // one request has one length here
  for (const uint32_t key : keys) by_length[length_of(key)].push_back(name_of(key));
  for (const auto& [length, names] : by_length) {
    const Keys block(names);
    const Put put(block, length);
    std::vector<WriteEntry> writes(names.size());
    store.reserve_writes(put.request(), 0, static_cast<uint32_t>(names.size()),
                         SegmentStore::Clock::now() + std::chrono::milliseconds(20), kNever, writes);
    for (size_t i = 0; i < names.size(); ++i) {
      if (writes[i].data == nullptr) continue;
      const std::vector<uint8_t> bytes = content(names[i], length);
      std::memcpy(writes[i].data, bytes.data(), length);
      writes[i].digest = crc32c(0, bytes.data(), length);
    }
    last_seq = std::max(last_seq, store.seal_writes(put.request(), writes));
  }
}

std::vector<uint32_t> draw_keys(std::mt19937& rng) {
  std::vector<uint32_t> keys;
  if (rng() % 2 == 0) {
    for (uint32_t i = 1 + rng() % 8; i-- > 0;) keys.push_back(rng() % kLargeKeys);
  } else {
    const uint32_t first = kLargeKeys + rng() % kTinyKeys;
    for (uint32_t i = 0; i < 256; ++i) keys.push_back(first + i);
  }
  return keys;
}

// Tells its journal to `out` as (first_seq, last_seq, bytes, groups), and takes acknowledgements from `in`.
[[noreturn]] void live(const std::string& path, uint32_t seed, uint64_t durable_seq, int out, int in) {
  SegmentStore store(options(path));
  store.set_namespaces({kNs}, store.namespaces());
  store.journal().rewind(durable_seq);
  std::vector<std::thread> threads;
  for (uint32_t writer = 0; writer < 2; ++writer)
    threads.emplace_back([&store, seed, writer] {
      std::mt19937 rng(seed + writer);
      for (uint64_t seq = 0;;) {
        put_keys(store, draw_keys(rng), seq);
        if (rng() % 8 == 0)
          store.journal().wait_acked(seq, Journal::Clock::now() + std::chrono::milliseconds(20), kNever);
      }
    });
  threads.emplace_back([&store, seed] {
    std::mt19937 rng(seed + 7);
    for (;;) {
      const Keys keys({name_of(rng() % kLargeKeys), name_of(kLargeKeys + rng() % kTinyKeys)});
      const auto reads = store.acquire_reads(keys.block(), nullptr);
      if (rng() % 2 == 0) store.remove(keys.block());  // while it is read
      store.verify(keys.block());
      store.release_reads(reads);
    }
  });
  for (;;) {
    if (const auto batch = store.journal().drain(1000)) {
      const uint64_t head[3] = {batch->first_seq, batch->last_seq, batch->groups.size()};
      write_all(out, head, sizeof(head));
      write_all(out, batch->groups.data(), batch->groups.size());
    }
    pollfd item{in, POLLIN, 0};
    uint64_t acked;
    while (::poll(&item, 1, 0) == 1 && ::read(in, &acked, sizeof(acked)) == sizeof(acked))
      store.journal().ack(acked);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

// ---- the test

// Takes what the child tells, and acknowledges it, until the deadline; then kills it and takes the rest.
void be_master(pid_t child, Directory& directory, int from, int to, std::mt19937& rng) {
  const auto ends_at = std::chrono::steady_clock::now() + std::chrono::microseconds(500 + rng() % 60'000);
  std::vector<uint8_t> buffer;
  bool told = false, killed = false;
  for (;;) {
    // Killed at some moment after the first batch, or before it in some rounds.
    if (!killed && std::chrono::steady_clock::now() >= ends_at && (told || rng() % 64 == 0)) {
      ::kill(child, SIGKILL);
      killed = true;
    }
    pollfd item{from, POLLIN, 0};
    if (::poll(&item, 1, 1) != 1) continue;
    const size_t had = buffer.size();
    buffer.resize(had + 65'536);
    const ssize_t n = ::read(from, buffer.data() + had, 65'536);
    buffer.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n <= 0) break;
    for (;;) {
      uint64_t head[3];
      if (buffer.size() < sizeof(head)) break;
      std::memcpy(head, buffer.data(), sizeof(head));
      if (buffer.size() < sizeof(head) + head[2]) break;
      directory.journal(head[0], head[1], buffer.data() + sizeof(head), head[2]);
      buffer.erase(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(sizeof(head) + head[2]));
      told = true;
      // Sometimes the child hears of it, sometimes it is killed first.
      if (rng() % 4 != 0) [[maybe_unused]]
        const ssize_t sent = ::write(to, &directory.durable_seq, 8);
    }
  }
  ::waitpid(child, nullptr, 0);
}

std::set<Fp> held_by(SegmentStore& store) {
  std::set<Fp> held;
  Directory as_directory;
  SegmentStore::Inventory inventory = store.begin_inventory();
  for (bool done = false; !done;) {
    std::vector<uint8_t> groups;
    done = store.inventory_slice(inventory, 4096, groups);
    size_t entries = 0;
    for (size_t at = 0; at < groups.size();) {
      uint32_t count;
      std::memcpy(&count, groups.data() + at + 4, 4);
      entries += count;
      at += 16 + size_t{count} * 20;
    }
    const uint64_t first = as_directory.durable_seq + 1;
    as_directory.journal(first, first + entries - 1, groups.data(), groups.size());
  }
  return as_directory.objects;
}

// What a segment does with a master that has so much of its journal.
void stream_on(SegmentStore& store, Directory& directory) {
  StoreJournalSource source(std::shared_ptr<SegmentStore>(&store, [](SegmentStore*) {}));
  JournalPump pump(source);
  CHECK(store.journal().last_seq() >= directory.durable_seq);
  CHECK(store.journal().oldest_kept_seq() <= directory.durable_seq + 1);
  pump.attached(directory.durable_seq, false);
  while (const auto message = pump.next_message()) {
    CHECK(message->kind == JournalPump::Kind::kBatch);
    if (message->kind != JournalPump::Kind::kBatch) return;
    directory.journal(message->first_seq, message->last_seq, message->groups.data(), message->groups.size());
    pump.acked(directory.durable_seq);
  }
  CHECK_EQ(pump.inventories_sent(), uint64_t{0});
  CHECK_EQ(pump.gaps(), uint64_t{0});
}

void check_bytes(SegmentStore& store, const std::map<Fp, uint32_t>& keys, const std::set<Fp>& held) {
  uint64_t wrong = 0;
  for (const Fp& fp : held) {
    const uint32_t key = keys.at(fp);
    const Keys block({name_of(key)});
    const auto reads = store.acquire_reads(block.block(), nullptr);
    const std::vector<uint8_t> bytes = content(name_of(key), length_of(key));
    wrong += reads[0].status != wire::Status::kOk || reads[0].length != bytes.size() ||
             std::memcmp(reads[0].data, bytes.data(), bytes.size()) != 0;
    store.release_reads(reads);
  }
  CHECK_EQ(wrong, uint64_t{0});
}

// ---- a process that dies at the first write to one part of its pool

void protect(SegmentStore& store, bool journal) {
  const PoolShape shape = Superblock(const_cast<uint8_t*>(store.pool().base())).shape();
  uint8_t* const base = const_cast<uint8_t*>(store.pool().base());
  const uint64_t from = journal ? shape.journal_offset : SlotTable::kFirstChunkOffset;
  const uint64_t end = journal ? shape.map_bytes : shape.data_offset;
  ::signal(SIGSEGV, [](int) { ::_exit(9); });
  ::mprotect(base + from, end - from, PROT_READ);
}

const std::map<std::string, std::function<void(SegmentStore&)>> kChanges = {
    {"put", [](SegmentStore& store) { put_one(store, "d", 500); }},
    {"remove", [](SegmentStore& store) { store.remove(Keys({"b"}).block()); }},
    {"remove of many", [](SegmentStore& store) { store.remove(Keys({"a", "b", "c"}).block()); }},
    {"remove of what is read",
     [](SegmentStore& store) {
       const auto reads = store.acquire_reads(Keys({"b"}).block(), nullptr);
       store.remove(Keys({"b"}).block());
     }},
    {"evict", [](SegmentStore& store) { store.evict_bytes(1); }},
    {"quarantine",
     [](SegmentStore& store) {
       const auto reads = store.acquire_reads(Keys({"b"}).block(), nullptr);
       const_cast<uint8_t*>(reads[0].data)[7] ^= 1;
       store.release_reads(reads);
       store.verify(Keys({"b"}).block());
     }},
    {"put again after a remove", [](SegmentStore& store) { put_one(store, "b", 500); }},
};

}  // namespace

TEST(dying_at_the_first_write_to_the_journal_or_to_a_header_it_leaves_both_telling_the_same) {
  for (const auto& [name, change] : kChanges) {
    for (const bool journal : {true, false}) {
      PoolPlace place;
      const std::string path = place.file("pool");
      const pid_t child = ::fork();
      if (child == 0) {
        SegmentStore store(options(path));
        for (const char* each : {"a", "b", "c"})
          if (put_one(store, each, 500) != wire::Status::kOk) ::_exit(1);
        if (name == "put again after a remove") store.remove(Keys({"b"}).block());
        protect(store, journal);
        change(store);
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      const bool died = WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0);
      if (!died || (WIFEXITED(status) && WEXITSTATUS(status) == 1))
        testing::fail(name.c_str(), journal, "it did not die where it was to");
      SegmentStore store(options(path));
      store.set_namespaces({kNs}, store.namespaces());
      Directory directory;
      stream_on(store, directory);
      if (held_by(store) != directory.objects)
        testing::fail(name.c_str(), journal, "the directory and the store tell different things");
      CHECK(directory.objects.size() >= 2 || name == "remove of many");
    }
  }
}

TEST(killed_at_any_moment_it_goes_on_without_a_gap_or_a_lie) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  std::map<Fp, uint32_t> keys;
  for (uint32_t key = 0; key < kLargeKeys + kTinyKeys + 256; ++key) keys[fp_of(key)] = key;
  PoolPlace place;
  const std::string path = place.file("pool");
  Directory directory;
  uint64_t adopted = 0, chunks_seen = 0;
  for (int round = 0; round < kRounds && failures() == 0; ++round) {
    {
      Pipe told, acked;
      const uint32_t child_seed = rng();
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(told.read_end());
        ::close(acked.write_end());
        live(path, child_seed, directory.durable_seq, told.write_end(), acked.read_end());
      }
      told.close_end(1);
      be_master(child, directory, told.read_end(), acked.write_end(), rng);
    }
    for (uint32_t i = rng() % 3; i > 0; --i) {  // killed while it takes over
      const pid_t child = ::fork();
      if (child == 0) {
        SegmentStore store(options(path));
        ::_exit(0);
      }
      ::usleep(rng() % 8000);
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    SegmentStore store(options(path));
    const PoolContent& content = store.pool_content();
    if (!content.warm) {  // killed before the pool was whole: nothing of it was ever told
      CHECK_EQ(directory.durable_seq, uint64_t{0});
      continue;
    }
    CHECK(!content.needs_inventory);
    CHECK_EQ(content.dropped[PoolScan::kBadBytes], uint64_t{0});
    CHECK_EQ(content.dropped[PoolScan::kMisplaced], uint64_t{0});
    CHECK(store.acquire_reads(Keys({name_of(0)}).block(), nullptr)[0].status == wire::Status::kMiss);
    store.set_namespaces({kNs}, store.namespaces());
    stream_on(store, directory);
    const std::set<Fp> held = held_by(store);
    CHECK_EQ(held.size(), content.objects);
    CHECK(held == directory.objects);
    check_bytes(store, keys, held);
    adopted += held.size();
    chunks_seen += content.objects > 16'384;
  }
  CHECK(adopted > 0);
  std::fprintf(stderr, "%llu objects taken over, %llu times out of more than one chunk\n",
               static_cast<unsigned long long>(adopted), static_cast<unsigned long long>(chunks_seen));
}

TEST(a_journal_whose_newest_state_and_entry_went_bad_gives_no_number_twice) {
  PoolPlace place;
  const std::string path = place.file("pool");
  uint64_t last = 0;
  {
    SegmentStore store(options(path));
    for (const char* key : {"one", "two", "three"}) CHECK_EQ(put_one(store, key, 100), wire::Status::kOk);
    last = store.journal().last_seq();
    CHECK_EQ(last, uint64_t{3});
    uint8_t* const base = store.pool().base();
    const PoolShape shape = Superblock(base).shape();
    uint8_t* const ring = base + shape.journal_offset;
    const auto serial = [&](size_t copy) {
      return *reinterpret_cast<const uint32_t*>(ring + 64 * copy + 24);
    };
    ring[serial(0) > serial(1) ? 0 : 64] ^= 1;
    ring[JournalRing::kStateBytes + last % shape.journal_entries * JournalRing::kEntryBytes] ^= 1;
  }
  SegmentStore store(options(path));
  CHECK(store.pool_content().warm && store.pool_content().needs_inventory);
  CHECK_EQ(store.pool_content().objects, uint64_t{3});
  CHECK(store.journal().oldest_kept_seq() > last + 1);  // a master that has heard of it all sees a gap
  CHECK(!store.journal().rewind(last));
}

TEST_MAIN()
