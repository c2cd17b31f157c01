#include "base/digest_wide.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace kvstore {
namespace {

#define KVSTORE_WIDE_TARGET __attribute__((target("avx512f,vpclmulqdq,sse4.2")))

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected Castagnoli
constexpr size_t kRegister = 64;
constexpr size_t kStep = 4 * kRegister;  // four independent registers hide the latency of the multiplication
// Below this a copy stays in the caches: whoever gets so little looks at it next.
constexpr size_t kStreamingBytesMin = 16u << 10;

// x^bits modulo the polynomial, as a factor of a reflected product.
constexpr uint64_t power_of_x(unsigned bits) {
  uint32_t value = 0x80000000u;
  for (; bits > 0; --bits) value = (value & 1) != 0 ? (value >> 1) ^ kPolynomial : value >> 1;
  return uint64_t{value} << 1;
}

// Moves each 16 bytes of a register `bits` further: their low half times the first factor and their high half times
// the second add up to what they are there, modulo the polynomial.
constexpr std::array<uint64_t, 8> factors(unsigned bits) {
  const uint64_t low = power_of_x(bits + 32), high = power_of_x(bits - 32);
  return {low, high, low, high, low, high, low, high};
}
alignas(kRegister) constexpr std::array<uint64_t, 8> kByStep = factors(8 * kStep);
alignas(kRegister) constexpr std::array<uint64_t, 8> kByRegister = factors(8 * kRegister);

KVSTORE_WIDE_TARGET inline __m512i fold(__m512i value, __m512i by) {
  return _mm512_xor_si512(_mm512_clmulepi64_epi128(value, by, 0x00),
                          _mm512_clmulepi64_epi128(value, by, 0x11));
}

enum class Store : uint8_t { kNone, kCached, kStreaming };

template <Store store>
KVSTORE_WIDE_TARGET inline void write([[maybe_unused]] uint8_t* to, [[maybe_unused]] size_t at,
                                      [[maybe_unused]] __m512i value) {
  if constexpr (store == Store::kCached) _mm512_storeu_si512(to + at, value);
  if constexpr (store == Store::kStreaming) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), value);
}

KVSTORE_WIDE_TARGET uint32_t narrow(uint32_t crc, const uint8_t* data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    crc = static_cast<uint32_t>(_mm_crc32_u64(crc, word));
  }
  for (; size > 0; --size) crc = _mm_crc32_u8(crc, *data++);
  return crc;
}

// Whole steps only, at least one. Streaming needs an aligned `to`.
template <Store store>
KVSTORE_WIDE_TARGET uint32_t fold_steps(uint32_t crc, uint8_t* to, const uint8_t* from, size_t size) {
  __m512i sums[4];
  for (size_t i = 0; i < 4; ++i) {
    sums[i] = _mm512_loadu_si512(from + i * kRegister);
    write<store>(to, i * kRegister, sums[i]);
  }
  sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int32_t>(crc))));
  const __m512i by_step = _mm512_load_si512(kByStep.data());
  for (size_t at = kStep; at < size; at += kStep)
    for (size_t i = 0; i < 4; ++i) {
      const __m512i bytes = _mm512_loadu_si512(from + at + i * kRegister);
      write<store>(to, at + i * kRegister, bytes);
      sums[i] = _mm512_xor_si512(fold(sums[i], by_step), bytes);
    }
  const __m512i by_register = _mm512_load_si512(kByRegister.data());
  for (size_t i = 1; i < 4; ++i) sums[i] = _mm512_xor_si512(sums[i], fold(sums[i - 1], by_register));
  // 64 bytes whose CRC is that of everything before them.
  alignas(kRegister) uint8_t rest[kRegister];
  _mm512_store_si512(rest, sums[3]);
  return narrow(0, rest, sizeof(rest));
}

KVSTORE_WIDE_TARGET uint32_t copy_narrow(uint32_t crc, uint8_t* to, const uint8_t* from, size_t size) {
  std::memcpy(to, from, size);
  return narrow(crc, to, size);
}

}  // namespace

bool have_wide_crc32c() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") &&
         __builtin_cpu_supports("sse4.2");
}

KVSTORE_WIDE_TARGET uint32_t wide_crc32c_raw(uint32_t crc, const uint8_t* data, size_t size) {
  const size_t folded = size - size % kStep;
  if (folded > 0) crc = fold_steps<Store::kNone>(crc, nullptr, data, folded);
  return narrow(crc, data + folded, size - folded);
}

KVSTORE_WIDE_TARGET uint32_t wide_copy_crc32c_raw(uint32_t crc, uint8_t* to, const uint8_t* from,
                                                  size_t size) {
  const bool streaming = size >= kStreamingBytesMin;
  const auto misaligned = reinterpret_cast<uintptr_t>(to) % kRegister;
  const size_t head = streaming && misaligned != 0 ? kRegister - misaligned : 0;
  if (head > 0) crc = copy_narrow(crc, to, from, head);
  const size_t folded = (size - head) - (size - head) % kStep;
  if (streaming) {
    crc = fold_steps<Store::kStreaming>(crc, to + head, from + head, folded);
    _mm_sfence();  // streaming stores keep no order by themselves, and what follows says that they are done
  } else if (folded > 0) {
    crc = fold_steps<Store::kCached>(crc, to, from, folded);
  }
  return copy_narrow(crc, to + head + folded, from + head + folded, size - head - folded);
}

}  // namespace kvstore

#else

namespace kvstore {
bool have_wide_crc32c() { return false; }
uint32_t wide_crc32c_raw(uint32_t crc, const uint8_t*, size_t) { return crc; }
uint32_t wide_copy_crc32c_raw(uint32_t crc, uint8_t*, const uint8_t*, size_t) { return crc; }
}  // namespace kvstore

#endif
