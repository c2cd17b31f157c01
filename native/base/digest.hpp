// CRC-32C (Castagnoli), alone and fused with a copy. Thread-safe, no state; the implementation is chosen once at load.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvstore {

constexpr uint8_t kDigestCrc32c = 1;

// Continues `crc` (0 to start) over the data; the usual init/final inversion is inside, so results chain:
// crc32c(crc32c(0, a), b) == crc32c(0, a + b).
uint32_t crc32c(uint32_t crc, const void* data, size_t size);

// memcpy(to, from, size) and the digest of what was written, in cache-sized blocks so that the second pass reads hot bytes.
uint32_t copy_crc32c(uint32_t crc, void* to, const void* from, size_t size);

// "sse4.2", "armv8" or "table".
const char* crc32c_implementation();

// The portable table version, for tests against the others.
uint32_t crc32c_table(uint32_t crc, const void* data, size_t size);

}  // namespace kvstore
