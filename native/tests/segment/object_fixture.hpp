// Keys, blocks and puts for tests of the segment side: owns the memory that the request views point into.
#pragma once

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "protocol/keys.hpp"
#include "protocol/put_request.hpp"
#include "segment/segment_store.hpp"

namespace kvstore::testing {

constexpr NamespaceId kNs = {'n', 'a', 'm', 'e', 's', 'p', 'c', '1'};

// A key block of named keys, whole shard, pool 0.
class Keys {
 public:
  explicit Keys(const std::vector<std::string>& names, const NamespaceId& ns = kNs) {
    for (const std::string& name : names) {
      const PageHash hash = string_hash(name);
      hashes_.insert(hashes_.end(), hash.begin(), hash.end());
    }
    block_.ns = ns;
    block_.shard_count = 1;
    block_.key_count = static_cast<uint32_t>(names.size());
  }
  const KeyBlock& block() const {
    block_.shards = kWholeShard.data();
    block_.hashes = hashes_.data();
    return block_;
  }

 private:
  std::vector<uint8_t> hashes_;
  mutable KeyBlock block_;
};

// Bytes that only this name has, of the given length.
inline std::vector<uint8_t> content(const std::string& name, size_t size) {
  std::vector<uint8_t> out(size);
  uint64_t state = std::hash<std::string>{}(name) | 1;
  for (size_t i = 0; i < size; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    out[i] = static_cast<uint8_t>(state >> 56);
  }
  return out;
}

// A put request over `keys`, each entry of `length` bytes.
class Put {
 public:
  Put(const Keys& keys, uint32_t length) : lengths_(keys.block().entry_count(), length) {
    put_.block = keys.block();
    put_.lengths = reinterpret_cast<const uint8_t*>(lengths_.data());
    put_.fingerprints = keys.block().fingerprints();
    put_.total_bytes = uint64_t{length} * lengths_.size();
    put_.commit_timeout_ms = 1000;
  }
  const PutRequest& request() const { return put_; }

 private:
  std::vector<uint32_t> lengths_;
  PutRequest put_;
};

inline const std::atomic<bool> kNever{false};

// Puts one object through the store's own calls; returns its status.
inline wire::Status put_one(SegmentStore& store, const std::string& name, uint32_t length,
                            const NamespaceId& ns = kNs, int timeout_ms = 1000) {
  const Keys keys({name}, ns);
  const Put put(keys, length);
  std::vector<WriteEntry> writes(1);
  store.reserve_writes(put.request(), 0, 1,
                       SegmentStore::Clock::now() + std::chrono::milliseconds(timeout_ms), kNever, writes);
  if (writes[0].data != nullptr) {
    const std::vector<uint8_t> bytes = content(name, length);
    writes[0].digest = copy_crc32c(0, writes[0].data, bytes.data(), length);
  }
  store.seal_writes(put.request(), writes);
  return writes[0].status;
}

// The status of a read; OK only when the bytes are what content() says.
inline wire::Status get_one(SegmentStore& store, const std::string& name, const NamespaceId& ns = kNs) {
  const Keys keys({name}, ns);
  const std::vector<ReadEntry> reads = store.acquire_reads(keys.block(), nullptr);
  wire::Status status = reads[0].status;
  if (status == wire::Status::kOk) {
    const std::vector<uint8_t> expected = content(name, reads[0].length);
    if (std::memcmp(reads[0].data, expected.data(), expected.size()) != 0)
      status = wire::Status::kDigestMismatch;
  }
  store.release_reads(reads);
  return status;
}

inline SegmentStoreOptions small_store(uint64_t capacity_bytes = 1 << 20) {
  SegmentStoreOptions options;
  options.capacity_bytes = capacity_bytes;
  options.pool_id = {1, 2, 3};
  return options;
}

}  // namespace kvstore::testing
