#include "protocol/keys.hpp"

#include <array>

#include "base/sha256.hpp"

namespace kvstore {
namespace {

template <typename T>
std::string_view view(const T& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The domain strings end in a NUL byte on purpose: no text can continue one into another.
constexpr std::string_view kFingerprintDomain{"kvstore/fingerprint/v2\0", 23};
constexpr std::string_view kStringDomain{"kvstore/string/v1\0", 18};
constexpr std::string_view kNamespaceDomain{"kvstore/namespace/v2\0", 21};

// The value of each hex digit; negative for everything else.
constexpr std::array<int8_t, 256> hex_digits() {
  std::array<int8_t, 256> values{};
  for (int8_t& value : values) value = -1;
  for (int8_t i = 0; i < 10; ++i) values['0' + static_cast<size_t>(i)] = i;
  for (int8_t i = 0; i < 6; ++i) {
    values['a' + static_cast<size_t>(i)] = static_cast<int8_t>(10 + i);
    values['A' + static_cast<size_t>(i)] = static_cast<int8_t>(10 + i);
  }
  return values;
}
constexpr std::array<int8_t, 256> kHexDigits = hex_digits();

}  // namespace

Fingerprint fingerprint_salt(const NamespaceId& ns, uint16_t pool, const Shard& shard) {
  const std::string_view pool_bytes{reinterpret_cast<const char*>(&pool), sizeof(pool)};
  const Sha256Digest d = sha256({kFingerprintDomain, view(ns), pool_bytes, view(shard)});
  Fingerprint salt;
  std::memcpy(&salt.lo, d.data(), 8);
  std::memcpy(&salt.hi, d.data() + 8, 8);
  return salt;
}

PageHash string_hash(std::string_view text) { return sha256({kStringDomain, text}); }

bool read_hex_hash(std::string_view key, uint8_t* hash) {
  if (key.size() != 2 * kHashBytes) return false;
  int wrong = 0;  // looked at once: keys are hardly ever anything else
  for (size_t i = 0; i < kHashBytes; ++i) {
    const int hi = kHexDigits[static_cast<uint8_t>(key[2 * i])],
              lo = kHexDigits[static_cast<uint8_t>(key[2 * i + 1])];
    wrong |= hi | lo;
    hash[i] = static_cast<uint8_t>(hi * 16 + lo);
  }
  return wrong >= 0;
}

PageHash page_hash(std::string_view key) {
  PageHash hash;
  return read_hex_hash(key, hash.data()) ? hash : string_hash(key);
}

NamespaceId namespace_id(std::string_view identity, uint32_t epoch) {
  const Sha256Digest inner = sha256({identity});
  const std::string_view epoch_bytes{reinterpret_cast<const char*>(&epoch), sizeof(epoch)};
  const Sha256Digest d = sha256({kNamespaceDomain, view(inner), epoch_bytes});
  NamespaceId id;
  std::memcpy(id.data(), d.data(), id.size());
  return id;
}

Key KeyBlock::key(uint32_t entry) const {
  Key k;
  k.ns = ns;
  k.pool = pool;
  k.shard = shard(entry % shard_count);
  std::memcpy(k.hash.data(), hash(entry), kHashBytes);
  return k;
}

std::vector<Fingerprint> KeyBlock::fingerprints() const {
  std::vector<Fingerprint> salts(shard_count);
  for (uint32_t s = 0; s < shard_count; ++s) salts[s] = fingerprint_salt(ns, pool, shard(s));
  std::vector<Fingerprint> out(entry_count());
  size_t at = 0;
  for (uint32_t k = 0; k < key_count; ++k)
    for (uint32_t s = 0; s < shard_count; ++s)
      out[at++] = fingerprint(salts[s], hashes + size_t{k} * kHashBytes);
  return out;
}

KeyBlock read_key_block(wire::Reader& reader) {
  KeyBlock block;
  std::memcpy(block.ns.data(), reader.bytes(kNamespaceBytes, "namespace"), kNamespaceBytes);
  block.pool = reader.u16("pool");
  block.shard_count = reader.u16("shard_count");
  block.key_count = reader.u32("key_count");
  if (block.shard_count == 0 || block.key_count == 0)
    throw wire::WireError(wire::Status::kBadRequest, "a key block needs at least one key and one shard");
  if (block.shard_count > wire::kShardsMax || block.key_count > wire::kKeysMax ||
      uint64_t{block.shard_count} * block.key_count > wire::kEntriesMax)
    throw wire::WireError(wire::Status::kTooLarge,
                          std::to_string(block.key_count) + " keys x " + std::to_string(block.shard_count) +
                              " shards is over the cap of " + std::to_string(wire::kEntriesMax) + " entries");
  block.shards = reader.bytes(size_t{block.shard_count} * kShardBytes, "shards");
  block.hashes = reader.bytes(size_t{block.key_count} * kHashBytes, "hashes");
  return block;
}

}  // namespace kvstore
