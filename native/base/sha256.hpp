// SHA-256 (FIPS 180-4), for keys and namespace ids only: short inputs, no streaming, no dependency.
// Pure functions; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace kvstore {

using Sha256Digest = std::array<uint8_t, 32>;

// The digest of the concatenation of the parts.
Sha256Digest sha256(std::initializer_list<std::string_view> parts);

}  // namespace kvstore
