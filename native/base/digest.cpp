#include "base/digest.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace kvstore {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected Castagnoli
constexpr size_t kStream = 4096;              // bytes of each of the three interleaved streams
constexpr size_t kCopyBlock = 16384;          // fits L1 twice: the digest pass reads what the copy just wrote

using Table = std::array<std::array<uint32_t, 256>, 8>;

constexpr Table make_table() {
  Table t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = c & 1 ? (c >> 1) ^ kPolynomial : c >> 1;
    t[0][i] = c;
  }
  for (uint32_t i = 0; i < 256; ++i)
    for (size_t s = 1; s < 8; ++s) t[s][i] = (t[s - 1][i] >> 8) ^ t[0][t[s - 1][i] & 0xFF];
  return t;
}
constexpr Table kTable = make_table();

uint32_t table_raw(uint32_t crc, const uint8_t* p, size_t n) {
  while (n >= 8) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    v ^= crc;
    crc = kTable[7][v & 0xFF] ^ kTable[6][(v >> 8) & 0xFF] ^ kTable[5][(v >> 16) & 0xFF] ^
          kTable[4][(v >> 24) & 0xFF] ^ kTable[3][(v >> 32) & 0xFF] ^ kTable[2][(v >> 40) & 0xFF] ^
          kTable[1][(v >> 48) & 0xFF] ^ kTable[0][v >> 56];
    p += 8, n -= 8;
  }
  while (n-- > 0) crc = (crc >> 8) ^ kTable[0][(crc ^ *p++) & 0xFF];
  return crc;
}

// Appending n zero bytes to a message is a linear map on its CRC. The matrix for kStream bytes, as four byte tables, lets
// three independent streams run in parallel and be joined afterwards.
struct ShiftTable {
  uint32_t t[4][256];
  uint32_t apply(uint32_t crc) const {
    return t[0][crc & 0xFF] ^ t[1][(crc >> 8) & 0xFF] ^ t[2][(crc >> 16) & 0xFF] ^ t[3][crc >> 24];
  }
};

ShiftTable make_shift(size_t zero_bytes) {
  uint32_t column[32];
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t c = 1u << bit;
    for (size_t i = 0; i < zero_bytes; ++i) c = (c >> 8) ^ kTable[0][c & 0xFF];
    column[bit] = c;
  }
  ShiftTable s;
  for (int byte = 0; byte < 4; ++byte)
    for (uint32_t v = 0; v < 256; ++v) {
      uint32_t c = 0;
      for (int bit = 0; bit < 8; ++bit)
        if (v >> bit & 1) c ^= column[8 * byte + bit];
      s.t[byte][v] = c;
    }
  return s;
}

#if defined(__x86_64__)
#define KVSTORE_CRC_TARGET __attribute__((target("sse4.2")))
#define KVSTORE_CRC64(crc, v) static_cast<uint32_t>(_mm_crc32_u64(crc, v))
#define KVSTORE_CRC8(crc, v) _mm_crc32_u8(crc, v)
constexpr const char* kHardwareName = "sse4.2";
bool have_hardware() { return __builtin_cpu_supports("sse4.2"); }
#define KVSTORE_HAVE_CRC 1
#elif defined(__aarch64__)
#define KVSTORE_CRC_TARGET __attribute__((target("+crc")))
#define KVSTORE_CRC64(crc, v) __crc32cd(crc, v)
#define KVSTORE_CRC8(crc, v) __crc32cb(crc, v)
constexpr const char* kHardwareName = "armv8";
bool have_hardware() { return (getauxval(AT_HWCAP) & (1u << 7)) != 0; }  // HWCAP_CRC32
#define KVSTORE_HAVE_CRC 1
#endif

#ifdef KVSTORE_HAVE_CRC
inline uint64_t load64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

KVSTORE_CRC_TARGET uint32_t hardware_raw(uint32_t crc, const uint8_t* p, size_t n) {
  static const ShiftTable shift = make_shift(kStream);
  while (n >= 3 * kStream) {
    uint32_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      a = KVSTORE_CRC64(a, load64(p + i));
      b = KVSTORE_CRC64(b, load64(p + kStream + i));
      c = KVSTORE_CRC64(c, load64(p + 2 * kStream + i));
    }
    crc = shift.apply(shift.apply(a) ^ b) ^ c;
    p += 3 * kStream, n -= 3 * kStream;
  }
  while (n >= 8) crc = KVSTORE_CRC64(crc, load64(p)), p += 8, n -= 8;
  while (n-- > 0) crc = KVSTORE_CRC8(crc, *p++);
  return crc;
}
#endif

using RawCrc = uint32_t (*)(uint32_t, const uint8_t*, size_t);
struct Choice {
  RawCrc fn;
  const char* name;
};

const Choice& choice() {
  static const Choice chosen = [] {
#ifdef KVSTORE_HAVE_CRC
    if (have_hardware()) return Choice{hardware_raw, kHardwareName};
#endif
    return Choice{table_raw, "table"};
  }();
  return chosen;
}

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t size) {
  return ~choice().fn(~crc, static_cast<const uint8_t*>(data), size);
}

uint32_t crc32c_table(uint32_t crc, const void* data, size_t size) {
  return ~table_raw(~crc, static_cast<const uint8_t*>(data), size);
}

uint32_t copy_crc32c(uint32_t crc, void* to, const void* from, size_t size) {
  const RawCrc fn = choice().fn;
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  crc = ~crc;
  while (size > 0) {
    const size_t step = size < kCopyBlock ? size : kCopyBlock;
    std::memcpy(out, in, step);
    crc = fn(crc, out, step);
    out += step, in += step, size -= step;
  }
  return ~crc;
}

const char* crc32c_implementation() { return choice().name; }

}  // namespace kvstore
