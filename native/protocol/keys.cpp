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

// Eight values of hex digits, a byte each, as four bytes: the first digit of each two is the higher one.
uint32_t joined_digits(uint64_t digits) {
  uint64_t bytes = ((digits << 4) | (digits >> 8)) & 0x00ff00ff00ff00ff;
  bytes = (bytes | (bytes >> 8)) & 0x0000ffff0000ffff;
  return static_cast<uint32_t>(bytes | (bytes >> 16));
}

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
  // Without branches, so that the compiler takes many digits at a time, and what is wrong is looked at once: keys are hardly
  // ever anything else.
  uint8_t digits[2 * kHashBytes];
  uint8_t wrong = 0;
  for (size_t i = 0; i < 2 * kHashBytes; ++i) {
    const auto c = static_cast<uint8_t>(key[i]);
    const auto number = static_cast<uint8_t>(c - '0'), letter = static_cast<uint8_t>((c | 0x20) - 'a');
    wrong |= static_cast<uint8_t>((number > 9) & (letter > 5));
    digits[i] = number > 9 ? static_cast<uint8_t>(letter + 10) : number;
  }
  for (size_t i = 0; i < kHashBytes / 4; ++i) {
    uint64_t eight = 0;
    std::memcpy(&eight, digits + 8 * i, 8);
    const uint32_t four = joined_digits(eight);
    std::memcpy(hash + 4 * i, &four, 4);
  }
  return wrong == 0;
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
