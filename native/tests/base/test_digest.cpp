#include <cstring>
#include <random>
#include <vector>

#include "base/digest.hpp"
#include "check.hpp"

using kvstore::copy_crc32c;
using kvstore::crc32c;
using kvstore::crc32c_table;

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

TEST(every_length_and_alignment_agrees_with_the_table) {
  std::mt19937 rng(7);
  std::vector<uint8_t> buf(60000);
  for (auto& b : buf) b = static_cast<uint8_t>(rng());
  for (size_t n : {0, 1, 7, 8, 9, 63, 4095, 4096, 12287, 12288, 12289, 16384, 16385, 40001, 59990})
    for (size_t shift : {0, 1, 3, 8})
      CHECK_EQ(crc32c(0, buf.data() + shift, n), crc32c_table(0, buf.data() + shift, n));
}

TEST(chains_and_copies) {
  std::mt19937 rng(8);
  std::vector<uint8_t> from(100003), to(100003, 0);
  for (auto& b : from) b = static_cast<uint8_t>(rng());
  const uint32_t whole = crc32c(0, from.data(), from.size());
  CHECK_EQ(crc32c(crc32c(0, from.data(), 33333), from.data() + 33333, from.size() - 33333), whole);
  CHECK_EQ(copy_crc32c(0, to.data(), from.data(), from.size()), whole);
  CHECK(std::memcmp(to.data(), from.data(), from.size()) == 0);
}

TEST_MAIN()
