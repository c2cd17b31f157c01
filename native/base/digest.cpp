#include "base/digest.hpp"

#include <array>
#include <cstring>
#include <vector>

#include "base/digest_wide.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace kvstore {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected Castagnoli
// Bytes of each of the three interleaved streams: of what is large, and of a page or its rest.
constexpr size_t kLongStream = 4096;
constexpr size_t kStream = 1360;
// A whole number of streams, and fits L1 twice: the digest pass reads what the copy just wrote.
constexpr size_t kCopyBlock = 3 * kStream;

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

// Appending n zero bytes to a message is a linear map on its CRC. The matrix for a stream's bytes, as four byte tables, lets
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

// Takes as much as makes three whole streams, as often as it can.
template <size_t stream>
KVSTORE_CRC_TARGET inline uint32_t three_streams(uint32_t crc, const uint8_t*& p, size_t& n) {
  static const ShiftTable shift = make_shift(stream);
  for (; n >= 3 * stream; p += 3 * stream, n -= 3 * stream) {
    uint32_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < stream; i += 8) {
      a = KVSTORE_CRC64(a, load64(p + i));
      b = KVSTORE_CRC64(b, load64(p + stream + i));
      c = KVSTORE_CRC64(c, load64(p + 2 * stream + i));
    }
    crc = shift.apply(shift.apply(a) ^ b) ^ c;
  }
  return crc;
}

KVSTORE_CRC_TARGET uint32_t hardware_raw(uint32_t crc, const uint8_t* p, size_t n) {
  crc = three_streams<kLongStream>(crc, p, n);
  crc = three_streams<kStream>(crc, p, n);
  while (n >= 8) crc = KVSTORE_CRC64(crc, load64(p)), p += 8, n -= 8;
  while (n-- > 0) crc = KVSTORE_CRC8(crc, *p++);
  return crc;
}
#endif

using RawCrc = uint32_t (*)(uint32_t, const uint8_t*, size_t);
using RawCopyCrc = uint32_t (*)(uint32_t, uint8_t*, const uint8_t*, size_t);

template <RawCrc raw>
uint32_t copy_in_blocks(uint32_t crc, uint8_t* to, const uint8_t* from, size_t size) {
  while (size > 0) {
    const size_t step = size < kCopyBlock ? size : kCopyBlock;
    std::memcpy(to, from, step);
    crc = raw(crc, to, step);
    to += step, from += step, size -= step;
  }
  return crc;
}

struct Implementation {
  const char* name;
  RawCrc crc;
  RawCopyCrc copy_crc;
};
constexpr Implementation kTableVersion{"table", table_raw, copy_in_blocks<table_raw>};

const std::vector<Implementation>& implementations() {
  static const std::vector<Implementation> here = [] {
    std::vector<Implementation> best_first;
    if (have_wide_crc32c()) best_first.push_back({"vpclmulqdq", wide_crc32c_raw, wide_copy_crc32c_raw});
#ifdef KVSTORE_HAVE_CRC
    if (have_hardware()) best_first.push_back({kHardwareName, hardware_raw, copy_in_blocks<hardware_raw>});
#endif
    best_first.push_back(kTableVersion);
    return best_first;
  }();
  return here;
}

const Implementation& best() {
  static const Implementation& chosen = implementations().front();
  return chosen;
}

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t size) {
  return ~best().crc(~crc, static_cast<const uint8_t*>(data), size);
}

uint32_t copy_crc32c(uint32_t crc, void* to, const void* from, size_t size) {
  return ~best().copy_crc(~crc, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), size);
}

const char* crc32c_implementation() { return best().name; }

std::vector<DigestImplementation> digest_implementations() {
  std::vector<DigestImplementation> all;
  for (const Implementation& one : implementations())
    all.push_back({one.name,
                   [one](uint32_t crc, const void* data, size_t size) {
                     return ~one.crc(~crc, static_cast<const uint8_t*>(data), size);
                   },
                   [one](uint32_t crc, void* to, const void* from, size_t size) {
                     return ~one.copy_crc(~crc, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from),
                                          size);
                   }});
  return all;
}

}  // namespace kvstore
