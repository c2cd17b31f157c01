// What the store of a segment takes for batches of 128 pages, by the number of objects that it holds; and for two
// threads beside one. Prints lines of `name number value`. Driven by `python -m benchmarks.decisions segment_store`.
#include "segment/segment_store.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "protocol/put_request.hpp"

using namespace kvstore;

namespace {

constexpr uint32_t kBatch = 128;
constexpr uint32_t kObjectBytes = 1;  // what is measured does not depend on it
using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

uint64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("RssAnon:", 0) == 0) return std::strtoull(line.c_str() + 8, nullptr, 10) * 1024;
  return 0;
}

// Batch number `number`: 128 keys that only it has.
class Batch {
 public:
  explicit Batch(uint64_t number, uint32_t length = kObjectBytes)
      : hashes_(kBatch * kHashBytes), lengths_(kBatch, length) {
    std::mt19937_64 random(number * 2654435761u + 1);
    for (size_t i = 0; i < hashes_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(&hashes_[i], &word, 8);
    }
    put_.block.ns = {'b', 'e', 'n', 'c', 'h'};
    put_.block.shard_count = 1;
    put_.block.key_count = kBatch;
    put_.block.shards = kWholeShard.data();
    put_.block.hashes = hashes_.data();
    put_.lengths = reinterpret_cast<const uint8_t*>(lengths_.data());
    put_.fingerprints = put_.block.fingerprints();
    put_.total_bytes = uint64_t{length} * kBatch;
  }
  const PutRequest& put() const { return put_; }

 private:
  std::vector<uint8_t> hashes_;
  std::vector<uint32_t> lengths_;
  PutRequest put_;
};

const std::atomic<bool> kNever{false};

void store_batch(SegmentStore& store, const Batch& batch) {
  std::vector<WriteEntry> writes(kBatch);
  store.reserve_writes(batch.put(), 0, kBatch, Clock::now() + std::chrono::seconds(10), kNever, writes);
  store.seal_writes(batch.put(), writes);
}

void read_batch(SegmentStore& store, const Batch& batch) {
  store.release_reads(store.acquire_reads(batch.put().block, nullptr));
}

void drop_journal(SegmentStore& store) { store.journal().ack(store.journal().last_seq()); }

SegmentStoreOptions options_for(uint64_t capacity_bytes) {
  SegmentStoreOptions options;
  options.capacity_bytes = capacity_bytes;
  options.free_ahead_bytes = 0;
  return options;
}

double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
void print(const char* name, uint64_t number, double value) {
  std::printf("%s %lu %.4g\n", name, number, value);
}

void measure_batches(uint64_t objects) {
  const uint64_t anonymous_before = anonymous_bytes();
  // A unit and a header each, and what is left over.
  SegmentStore store(options_for(objects * (ExtentAllocator::kUnitBytes + sizeof(SlotHeader)) + (4 << 20)));
  const uint64_t batches = objects / kBatch;
  const uint64_t measured = std::min<uint64_t>(batches / 2, 2000);
  std::vector<double> put_us, read_us, full_us, evict_us;
  for (uint64_t number = 0; number < batches; ++number) {
    const Batch batch(number);
    const auto start = Clock::now();
    store_batch(store, batch);
    if (number + measured >= batches) put_us.push_back(us_since(start));
    if (number % 64 == 0) drop_journal(store);
  }
  drop_journal(store);
  print("put_us", objects, median(put_us));
  const uint64_t held = store.stats().at("object_count");
  print("metadata_bytes", objects,
        double(anonymous_bytes() - anonymous_before) / double(held) + sizeof(SlotHeader));
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < measured; ++i) {
    const Batch batch(random() % batches);
    const auto start = Clock::now();
    read_batch(store, batch);
    read_us.push_back(us_since(start));
  }
  print("read_us", objects, median(read_us));
  for (uint64_t i = 0; i < measured; ++i) {
    const auto start = Clock::now();
    store.evict_bytes(kBatch * ExtentAllocator::kUnitBytes);
    evict_us.push_back(us_since(start));
    store_batch(store, Batch(batches + i));
    if (i % 64 == 0) drop_journal(store);
  }
  print("evict_us", objects, median(evict_us));
  // Until it is full, so that each put evicts.
  uint64_t number = 2 * batches;
  while (store.stats().at("evicted_objects") < measured * kBatch + kBatch)
    store_batch(store, Batch(number++));
  for (uint64_t i = 0; i < measured; ++i) {
    const Batch batch(number++);
    const auto start = Clock::now();
    store_batch(store, batch);
    full_us.push_back(us_since(start));
    if (i % 64 == 0) drop_journal(store);
  }
  print("full_put_us", objects, median(full_us));
}

void measure_threads(uint64_t objects) {
  SegmentStore store(options_for(objects * 256));
  const uint64_t batches = objects / kBatch;
  std::vector<Batch> all;
  for (uint64_t number = 0; number < batches; ++number) {
    all.emplace_back(number);
    store_batch(store, Batch(number));
  }
  drop_journal(store);
  for (int round = 0; round < 5; ++round)
    for (unsigned threads = 1; threads <= 2; ++threads) {
      std::atomic<bool> go{false}, stop{false};
      std::atomic<uint64_t> done{0};
      std::vector<std::thread> readers;
      for (unsigned t = 0; t < threads; ++t)
        readers.emplace_back([&, t] {
          std::mt19937_64 random(t);
          while (!go.load()) {
          }
          uint64_t count = 0;
          for (; !stop.load(std::memory_order_relaxed); ++count) read_batch(store, all[random() % batches]);
          done += count;
        });
      const auto start = Clock::now();
      go = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      stop = true;
      for (std::thread& reader : readers) reader.join();
      print("reads_per_s", threads, double(done.load()) * kBatch * 1e6 / us_since(start));
    }
}

void measure_mixed(uint64_t capacity_bytes) {
  SegmentStoreOptions options = options_for(capacity_bytes);
  options.free_ahead_bytes = SegmentStoreOptions::kFreeAheadByCapacity;
  SegmentStore store(options);
  std::mt19937_64 random(1);
  uint64_t put_bytes = 0, objects = 0, refused = 0;
  std::vector<double> us;
  while (put_bytes < 3 * capacity_bytes) {
    const double share = double(random() >> 11) / double(uint64_t{1} << 53);
    const auto length = static_cast<uint32_t>(200 * std::pow(4.0 * (1 << 20) / 200, share));
    const Batch batch(objects, length);
    PutRequest put = batch.put();
    put.block.key_count = 1;
    std::vector<WriteEntry> writes(1);
    const auto start = Clock::now();
    store.reserve_writes(put, 0, 1, Clock::now() + std::chrono::seconds(10), kNever, writes);
    refused += writes[0].status != wire::Status::kOk;
    store.seal_writes(put, writes);
    us.push_back(us_since(start));
    put_bytes += length;
    ++objects;
    if (objects % 4096 == 0) drop_journal(store);
  }
  const auto stats = store.stats();
  print("mixed_refused", objects, double(refused));
  print("mixed_fill", objects, double(stats.at("used_bytes")) / double(capacity_bytes));
  std::sort(us.begin(), us.end());
  print("mixed_put_us", objects, us[us.size() / 2]);
  print("mixed_put_p999_us", objects, us[us.size() * 999 / 1000]);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  const uint64_t number = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 0;
  if (what == "batches" && number >= kBatch) {
    measure_batches(number);
  } else if (what == "threads" && number >= kBatch) {
    measure_threads(number);
  } else if (what == "mixed" && number >= 1 << 20) {
    measure_mixed(number);
  } else {
    std::fprintf(stderr, "usage: segment_store batches OBJECTS | threads OBJECTS | mixed CAPACITY_BYTES\n");
    return 2;
  }
  return 0;
}
