#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "base/sha256.hpp"
#include "check.hpp"
#include "protocol/keys.hpp"
#include "write_key_block.hpp"

using namespace kvstore;
using testing::write_key_block;

static std::string hex(const uint8_t* p, size_t n) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < n; ++i) out += digits[p[i] >> 4], out += digits[p[i] & 15];
  return out;
}

// FIPS 180-4 example values.
TEST(sha256_known_values) {
  auto of = [](std::string_view s) {
    auto d = sha256({s});
    return hex(d.data(), d.size());
  };
  CHECK_EQ(of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(of(std::string(1000, 'a')), "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

TEST(sha256_joins_its_parts) { CHECK(sha256({"ab", "", "c"}) == sha256({"abc"})); }

TEST(page_hash_reads_hex_and_hashes_the_rest) {
  const std::string digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  CHECK(page_hash(digits) == sha256({"abc"}));
  CHECK(page_hash("g" + digits.substr(1)) == string_hash("g" + digits.substr(1)));
  const std::string second = digits.substr(0, 1) + "g" + digits.substr(2);
  CHECK(page_hash(second) == string_hash(second));
  CHECK(page_hash("short") == string_hash("short"));
  CHECK(page_hash(digits + "00") == string_hash(digits + "00"));
}

TEST(fingerprints_of_different_coordinates_differ) {
  NamespaceId a{1}, b{2};
  Shard other = kWholeShard;
  other[4] = 1;
  const PageHash hash = string_hash("page");
  const auto fp = [&](const NamespaceId& ns, uint16_t pool, const Shard& shard) {
    return fingerprint(fingerprint_salt(ns, pool, shard), hash.data());
  };
  CHECK(fp(a, 0, kWholeShard) == fp(a, 0, kWholeShard));
  CHECK(fp(a, 0, kWholeShard) != fp(b, 0, kWholeShard));
  CHECK(fp(a, 0, kWholeShard) != fp(a, 1, kWholeShard));
  CHECK(fp(a, 0, kWholeShard) != fp(a, 0, other));
}

TEST(every_bit_of_a_page_hash_counts) {
  const Fingerprint salt = fingerprint_salt(NamespaceId{1}, 0, kWholeShard);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const auto is_new = [&](const PageHash& hash) {
    const Fingerprint f = fingerprint(salt, hash.data());
    return seen.insert({f.lo, f.hi}).second;
  };
  PageHash hash = string_hash("page");
  CHECK(is_new(hash));
  for (size_t bit = 0; bit < 8 * kHashBytes; ++bit) {
    hash[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    CHECK(is_new(hash));
    hash[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
  // Two equal halves, as of a byte repeated, must be nothing special.
  for (int byte = 0; byte < 256; ++byte) {
    hash.fill(static_cast<uint8_t>(byte));
    CHECK(is_new(hash));
  }
}

TEST(counters_for_page_keys_fill_a_table_evenly) {
  const Fingerprint salt = fingerprint_salt(NamespaceId{1}, 0, kWholeShard);
  constexpr uint32_t kKeys = 1 << 16;
  for (const size_t at : {0, 4, 8, 12, 16, 20, 24, 28}) {
    std::set<size_t> places;
    for (uint32_t i = 0; i < kKeys; ++i) {
      PageHash hash{};
      std::memcpy(hash.data() + at, &i, sizeof(i));
      const Fingerprint f = fingerprint(salt, hash.data());
      places.insert(f.lo % kKeys);
    }
    // Random keys fill 63 %.
    CHECK(places.size() > kKeys * 6 / 10);
  }
}

TEST(namespace_ids_change_with_epoch_and_identity) {
  CHECK(namespace_id("{}", 0) != namespace_id("{}", 1));
  CHECK(namespace_id("{}", 0) != namespace_id("{ }", 0));
}

TEST(key_block_round_trip_and_caps) {
  std::vector<uint8_t> shards(2 * kShardBytes, 3), hashes(5 * kHashBytes, 9);
  KeyBlock block;
  block.ns = {1, 2, 3, 4, 5, 6, 7, 8};
  block.pool = 4, block.shard_count = 2, block.key_count = 5;
  block.shards = shards.data(), block.hashes = hashes.data();
  wire::Writer w;
  write_key_block(w, block);
  wire::Reader r(w.data(), w.size());
  const KeyBlock back = read_key_block(r);
  CHECK_EQ(back.entry_count(), 10u);
  CHECK(back.key(7) == block.key(7));
  CHECK_EQ(r.left(), size_t{0});
  for (size_t cut = 0; cut < w.size(); ++cut) {
    wire::Reader half(w.data(), cut);
    CHECK_THROWS(read_key_block(half), wire::WireError);
  }
  block.key_count = 0;
  wire::Writer none;
  write_key_block(none, block);
  wire::Reader rn(none.data(), none.size());
  CHECK_THROWS(read_key_block(rn), wire::WireError);
}

TEST(entries_go_through_all_shards_of_a_key_before_the_next_key) {
  std::vector<uint8_t> shards(3 * kShardBytes), hashes(2 * kHashBytes);
  for (size_t i = 0; i < shards.size(); ++i) shards[i] = static_cast<uint8_t>(i / kShardBytes);
  for (size_t i = 0; i < hashes.size(); ++i) hashes[i] = static_cast<uint8_t>(100 + i / kHashBytes);
  KeyBlock block;
  block.shard_count = 3, block.key_count = 2;
  block.shards = shards.data(), block.hashes = hashes.data();
  for (uint32_t entry = 0; entry < 6; ++entry) {
    const Key key = block.key(entry);
    CHECK_EQ(uint32_t{key.shard[0]}, entry % 3);
    CHECK_EQ(uint32_t{key.hash[0]}, 100 + entry / 3);
    const Fingerprint salt = fingerprint_salt(block.ns, block.pool, key.shard);
    CHECK(block.fingerprints()[entry] == fingerprint(salt, key.hash.data()));
  }
}

TEST(a_key_block_over_a_cap_is_refused_as_too_large) {
  const auto refused = [](uint32_t shard_count, uint32_t key_count) {
    wire::Writer block;
    block.zeros(kNamespaceBytes).u16(0).u16(static_cast<uint16_t>(shard_count)).u32(key_count);
    block.zeros(size_t{shard_count} * kShardBytes).zeros(size_t{key_count} * kHashBytes);
    wire::Reader reader(block.data(), block.size());
    try {
      read_key_block(reader);
      return false;
    } catch (const wire::WireError& e) {
      return e.status == wire::Status::kTooLarge;
    }
  };
  CHECK(!refused(wire::kShardsMax, 1));
  CHECK(refused(wire::kShardsMax + 1, 1));
  CHECK(!refused(1, wire::kKeysMax));
  CHECK(refused(1, wire::kKeysMax + 1));
  CHECK(refused(4, wire::kEntriesMax / 4 + 1));
}

TEST_MAIN()
