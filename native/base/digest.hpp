// CRC-32C (Castagnoli), alone and fused with a copy. Thread-safe, no state; the implementation is chosen once at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvstore {

constexpr uint8_t kDigestCrc32c = 1;

// Continues `crc` (0 to start) over the data; the usual init/final inversion is inside, so results chain:
// crc32c(crc32c(0, a), b) == crc32c(0, a + b).
uint32_t crc32c(uint32_t crc, const void* data, size_t size);

// memcpy(to, from, size) and the digest of what was written, in one pass over memory.
uint32_t copy_crc32c(uint32_t crc, void* to, const void* from, size_t size);

// The best that this CPU has: "vpclmulqdq", "sse4.2", "armv8" or "table".
const char* crc32c_implementation();

// All that this CPU has, the best first and the portable table version last: for tests of each against the others.
struct DigestImplementation {
  const char* name;
  std::function<uint32_t(uint32_t crc, const void* data, size_t size)> crc32c;
  std::function<uint32_t(uint32_t crc, void* to, const void* from, size_t size)> copy_crc32c;
};
std::vector<DigestImplementation> digest_implementations();

}  // namespace kvstore
