#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "check.hpp"

using kvstore::copy_crc32c;
using kvstore::crc32c;

// RFC 3720 appendix B.4.
TEST(known_values) {
  std::vector<uint8_t> buf(32, 0);
  CHECK_EQ(crc32c(0, buf.data(), 32), 0x8A9136AAu);
  std::memset(buf.data(), 0xFF, 32);
  CHECK_EQ(crc32c(0, buf.data(), 32), 0x62A8AB43u);
  for (int i = 0; i < 32; ++i) buf[i] = static_cast<uint8_t>(i);
  CHECK_EQ(crc32c(0, buf.data(), 32), 0x46DD794Eu);
  CHECK_EQ(crc32c(0, "123456789", 9), 0xE3069283u);
}

// Every length around each block of each implementation, from every alignment that a register can have.
TEST(every_implementation_agrees_with_the_table_for_all_lengths_and_alignments) {
  const auto implementations = kvstore::digest_implementations();
  const auto& table = implementations.back();
  CHECK_EQ(std::string(table.name), "table");
  std::vector<uint8_t> from(70000), to(70000 + 128);
  std::mt19937 rng(7);
  for (auto& b : from) b = static_cast<uint8_t>(rng());
  std::vector<size_t> lengths;
  for (size_t n = 0; n <= 600; ++n) lengths.push_back(n);
  for (const size_t around : {1360, 4080, 4096, 8192, 12288, 16384, 16384 + 4080, 32768, 65536})
    for (size_t n = around - 9; n <= around + 9; ++n) lengths.push_back(n);
  for (size_t at = 0; at < lengths.size(); ++at) {
    const size_t n = lengths[at], shift = at % 65, to_shift = (at * 7) % 65;
    const uint32_t start = static_cast<uint32_t>(rng());
    const uint32_t expected = table.crc32c(start, from.data() + shift, n);
    for (const auto& one : implementations) {
      CHECK_EQ(one.crc32c(start, from.data() + shift, n), expected);
      std::memset(to.data(), 0xA5, to.size());
      CHECK_EQ(one.copy_crc32c(start, to.data() + to_shift, from.data() + shift, n), expected);
      CHECK(std::memcmp(to.data() + to_shift, from.data() + shift, n) == 0);
      CHECK(to_shift == 0 || to[to_shift - 1] == 0xA5);
      CHECK_EQ(to[to_shift + n], 0xA5);
    }
  }
}

TEST(chains_and_copies) {
  std::mt19937 rng(8);
  std::vector<uint8_t> from(100003), to(100003, 0);
  for (auto& b : from) b = static_cast<uint8_t>(rng());
  for (const auto& one : kvstore::digest_implementations()) {
    const uint32_t whole = one.crc32c(0, from.data(), from.size());
    CHECK_EQ(one.crc32c(one.crc32c(0, from.data(), 33333), from.data() + 33333, from.size() - 33333), whole);
    std::fill(to.begin(), to.end(), 0);
    CHECK_EQ(one.copy_crc32c(0, to.data(), from.data(), from.size()), whole);
    CHECK(std::memcmp(to.data(), from.data(), from.size()) == 0);
  }
  CHECK_EQ(copy_crc32c(0, to.data(), from.data(), from.size()), crc32c(0, from.data(), from.size()));
}

TEST_MAIN()
