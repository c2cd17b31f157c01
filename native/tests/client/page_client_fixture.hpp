// A client with a directory of its own, and batches of seeded keys over given memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "builtin/builtin.hpp"
#include "check.hpp"
#include "client/client_test_peers.hpp"
#include "client/page_client.hpp"

namespace kvstore::testing {

constexpr int64_t kLateMsMax = 100;
constexpr int64_t kPlentyMs = 10000;

inline std::string socket_path() {
  static std::atomic<int> number{0};
  return "/tmp/kvstore-test-" + std::to_string(::getpid()) + "-" + std::to_string(number++) + ".sock";
}

// Keys and memory of a batch: every key has an object of size_bytes for each shard, in pieces_per_entry
// pieces.
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
  bool all(wire::Status status) const {
    return std::all_of(statuses.begin(), statuses.end(),
                       [&](uint8_t s) { return s == static_cast<uint8_t>(status); });
  }
  bool none_ok() const {
    return std::none_of(statuses.begin(), statuses.end(), [](uint8_t s) { return s == 0; });
  }
  uint8_t* bytes;
  size_t total;
  std::vector<uint8_t> hashes, shards, statuses;
  KeyBlock keys;
  std::unique_ptr<Pieces> pieces;
};

inline void fill(uint8_t* to, size_t n, unsigned seed) {
  std::mt19937 random(seed);
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(random());
}

inline PageClientOptions client_options() {
  PageClientOptions options;
  options.transports = builtin_transports();
  return options;
}

struct Fixture {
  explicit Fixture(const PageClientOptions& options = client_options())
      : client({{"127.0.0.1", directory.port(), ""}}, options) {}
  static constexpr const char* kIdentity = "{\"model\":\"m\"}";

  void open() {
    const auto [status, opened] = client.open_namespace(kIdentity, "m", Deadline::after_ms(kPlentyMs));
    CHECK(status == wire::Status::kOk);
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
  template <typename CounterOrName>
  uint64_t count(CounterOrName counter) const {
    return client.counters().value(counter);
  }

  TestDirectory directory;
  PageClient client;
  int handle = 0;
};

inline PageClientOptions tcp_only() {
  PageClientOptions options = client_options();
  options.transport_options["same_host"] = "false";
  return options;
}

// A peer that fails stays refused for the rest of a test.
inline PageClientOptions slow_back_off() {
  PageClientOptions options = tcp_only();
  options.backoff_ms_min = options.backoff_ms_max = 60000;
  return options;
}

}  // namespace kvstore::testing
