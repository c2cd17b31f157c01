#include <algorithm>
#include <random>

#include "check.hpp"
#include "protocol/entry_blocks.hpp"

using namespace kvstore;

TEST(entries_of_a_full_product_are_one_block) {
  std::vector<uint32_t> entries(12);
  for (uint32_t i = 0; i < 12; ++i) entries[i] = i;
  const auto blocks = make_blocks(entries, 3);
  CHECK_EQ(blocks.size(), 1u);
  CHECK_EQ(blocks[0].keys.size(), 4u);
  CHECK_EQ(blocks[0].shards.size(), 3u);
  for (uint32_t i = 0; i < 12; ++i) CHECK_EQ(blocks[0].entry(i, 3), i);
}

TEST(stripes_cover_every_entry_once_and_respect_the_limits) {
  const unsigned seed = 20240607;
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const uint32_t shards = 1 + random() % 64, keys = 1 + random() % 40;
    std::vector<uint32_t> entries;
    for (uint32_t e = 0; e < shards * keys; ++e)
      if (random() % 3 != 0) entries.push_back(e);
    const auto bytes_of = [](uint32_t e) { return uint64_t{e} * 977 % 5000 + 1; };
    const auto blocks = make_blocks(entries, shards);
    const RunLimits limits{1 + random() % 20000, 1 + random() % 100};
    const size_t wanted_stripes = 1 + random() % 4;
    const auto stripes = cut_stripes(blocks, shards, wanted_stripes, limits, bytes_of);
    CHECK(stripes.size() >= 1 && stripes.size() <= wanted_stripes);
    std::vector<uint32_t> seen;
    for (const auto& stripe : stripes)
      for (const EntryRun& run : stripe) {
        uint64_t bytes = 0;
        const auto of_run = run.entries(shards);
        CHECK_EQ(of_run.size(), run.entry_count());
        for (const uint32_t entry : of_run) bytes += bytes_of(entry);
        CHECK_EQ(bytes, run.bytes);
        CHECK(run.key_count() >= 1);
        CHECK(run.key_count() == 1 || (bytes <= limits.bytes && run.entry_count() <= limits.entries));
        seen.insert(seen.end(), of_run.begin(), of_run.end());
      }
    std::sort(seen.begin(), seen.end());
    CHECK(seen == entries);
  }
}

TEST(stripes_of_equal_objects_are_balanced) {
  std::vector<uint32_t> entries(128);
  for (uint32_t i = 0; i < 128; ++i) entries[i] = i;
  const auto blocks = make_blocks(entries, 1);
  const auto stripes = cut_stripes(blocks, 1, 2, {4u << 20, 4096}, [](uint32_t) { return uint64_t{65536}; });
  CHECK_EQ(stripes.size(), 2u);
  for (const auto& stripe : stripes) {
    uint64_t bytes = 0;
    for (const EntryRun& run : stripe) bytes += run.bytes;
    CHECK_EQ(bytes, uint64_t{64} * 65536);
  }
}

TEST(a_run_of_small_objects_ends_at_its_limit_of_entries) {
  std::vector<uint32_t> entries(100);
  for (uint32_t i = 0; i < 100; ++i) entries[i] = i;
  const auto blocks = make_blocks(entries, 2);
  const auto stripes = cut_stripes(blocks, 2, 1, {1u << 20, 16}, [](uint32_t) { return uint64_t{1}; });
  CHECK_EQ(stripes.size(), 1u);
  CHECK_EQ(stripes[0].size(), 7u);
  for (const EntryRun& run : stripes[0]) CHECK(run.entry_count() <= 16);
}

TEST(a_run_on_the_wire_reads_back_as_its_keys_and_shards) {
  std::vector<uint8_t> hashes(5 * kHashBytes), shards(3 * kShardBytes);
  for (size_t i = 0; i < hashes.size(); ++i) hashes[i] = static_cast<uint8_t>(i * 7);
  for (size_t i = 0; i < shards.size(); ++i) shards[i] = static_cast<uint8_t>(i * 5);
  KeyBlock keys{{1, 2, 3, 4, 5, 6, 7, 8}, 9, 3, 5, shards.data(), hashes.data()};
  const auto blocks = make_blocks({3, 5, 9, 11}, 3);  // keys 1 and 3, shards 0 and 2
  CHECK_EQ(blocks.size(), 1u);
  const EntryRun run{&blocks[0], 0, 2, 0};
  wire::Writer body;
  write_run(body, keys, run);
  wire::Reader reader(body.data(), body.size());
  const KeyBlock read = read_key_block(reader);
  CHECK_EQ(reader.left(), 0u);
  CHECK(read.ns == keys.ns);
  CHECK_EQ(read.pool, 9);
  const auto wanted = keys.fingerprints();
  const auto got = read.fingerprints();
  CHECK(got == std::vector<Fingerprint>({wanted[3], wanted[5], wanted[9], wanted[11]}));
}

TEST_MAIN()
