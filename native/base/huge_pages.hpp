// Huge pages as the system has them. Reads /sys; no state, thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace kvstore {

enum class HugePages : uint8_t { kOff, kTransparent, k2MiB, k1GiB };

// "off", "thp", "2MiB" or "1GiB". Throws std::invalid_argument, which names them, for another text.
HugePages huge_pages_of(const std::string& text);
// Of the pages that are set aside by the administrator; 0 for the others.
uint64_t reserved_page_bytes(HugePages pages) noexcept;

// Empty when `bytes` of huge pages of `page_bytes` are free; otherwise how many there are, and the command that makes more.
std::string huge_page_limit_in_the_way(uint64_t bytes, uint64_t page_bytes);

}  // namespace kvstore
