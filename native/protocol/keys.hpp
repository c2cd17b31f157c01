// Keys, fingerprints, and the key block that data-port requests carry (docs/protocol.md section 3).
// Pure values and functions; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "protocol/wire.hpp"

namespace kvstore {

constexpr size_t kNamespaceBytes = 8;
constexpr size_t kShardBytes = 12;
constexpr size_t kHashBytes = 32;
constexpr size_t kFingerprintBytes = 16;
constexpr uint16_t kStringPool = 0xFFFF;

using NamespaceId = std::array<uint8_t, kNamespaceBytes>;
using Shard = std::array<uint8_t, kShardBytes>;
using PageHash = std::array<uint8_t, kHashBytes>;
constexpr Shard kWholeShard = {0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0};

struct Fingerprint {
  uint64_t lo = 0;
  uint64_t hi = 0;
  bool operator==(const Fingerprint& o) const { return lo == o.lo && hi == o.hi; }
  bool operator!=(const Fingerprint& o) const { return !(*this == o); }
};

// The whole identity of an object, as a slot header keeps it.
struct Key {
  NamespaceId ns;
  uint16_t pool;
  Shard shard;
  PageHash hash;
  bool operator==(const Key& o) const {
    return pool == o.pool && ns == o.ns && shard == o.shard && hash == o.hash;
  }
};

// What folded page hashes of (ns, pool, shard) are XORed with.
Fingerprint fingerprint_salt(const NamespaceId& ns, uint16_t pool, const Shard& shard);

// A permutation of 64 bits in which every bit depends on every other (the finaliser of MurmurHash3).
inline uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
  return x ^ x >> 33;
}

// All 32 bytes count, for page keys need not be hashes: they are what a caller says. Each step below can be undone for one half
// of the hash when the other is known, so two hashes that share a half never have the same fingerprint; and the halves are
// treated differently, so that a hash of two equal halves is nothing special.
inline Fingerprint fingerprint(const Fingerprint& salt, const uint8_t hash[kHashBytes]) {
  uint64_t w[4];
  std::memcpy(w, hash, sizeof(w));
  const uint64_t a = mix64(w[2] + mix64(w[3]));
  const uint64_t b = w[1] ^ mix64(w[3] + a);
  return {salt.lo ^ mix64(w[0] ^ a ^ mix64(b)), salt.hi ^ b};
}

PageHash string_hash(std::string_view text);
// Writes the hash that 64 hex digits spell. False for any other text; *hash is then of no use.
bool read_hex_hash(std::string_view key, uint8_t* hash);
// 64 hex digits -> the hash they spell; any other text -> string_hash(text).
PageHash page_hash(std::string_view key);
NamespaceId namespace_id(std::string_view identity, uint32_t epoch);

// Keys x shards of one namespace and pool, as a caller gave them or a request carries them. Views: what they point to outlives the
// block. Entry k * shard_count + s is key k, shard s.
struct KeyBlock {
  NamespaceId ns{};
  uint16_t pool = 0;
  uint32_t shard_count = 0;
  uint32_t key_count = 0;
  const uint8_t* shards = nullptr;  // kShardBytes each
  const uint8_t* hashes = nullptr;  // kHashBytes each

  uint32_t entry_count() const { return shard_count * key_count; }
  const uint8_t* hash(uint32_t entry) const { return hashes + size_t{entry / shard_count} * kHashBytes; }
  Shard shard(uint32_t index) const {
    Shard s;
    std::memcpy(s.data(), shards + size_t{index} * kShardBytes, kShardBytes);
    return s;
  }
  Key key(uint32_t entry) const;
  // Fingerprints of all entries, key-major.
  std::vector<Fingerprint> fingerprints() const;
};

// Throws wire::WireError when it is short or over a cap. Zero keys or zero shards are refused.
KeyBlock read_key_block(wire::Reader& reader);

}  // namespace kvstore
