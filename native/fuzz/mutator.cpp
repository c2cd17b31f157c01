#include "mutator.hpp"

#include <algorithm>

namespace kvstore::fuzz {
namespace {

constexpr size_t kChangesMax = 6;

// Where bounds tend to lie.
constexpr uint64_t kNumbers[] = {0,
                                 1,
                                 2,
                                 3,
                                 7,
                                 8,
                                 16,
                                 63,
                                 64,
                                 65,
                                 127,
                                 128,
                                 255,
                                 256,
                                 257,
                                 1023,
                                 1024,
                                 4096,
                                 65535,
                                 65536,
                                 65537,
                                 131072,
                                 131073,
                                 1u << 20,
                                 1u << 24,
                                 (1u << 24) + 1,
                                 1u << 30,
                                 (1u << 30) + 1,
                                 0x7FFFFFFF,
                                 0x80000000,
                                 0xFFFFFFFD,
                                 0xFFFFFFFE,
                                 0xFFFFFFFF,
                                 0x100000000,
                                 0x7FFFFFFFFFFFFFFF,
                                 0x8000000000000000,
                                 0xFFFFFFFFFFFFFFFE,
                                 0xFFFFFFFFFFFFFFFF};

}  // namespace

void Mutator::change_number(Bytes& bytes) {
  const size_t width = size_t{1} << below(4);
  if (bytes.size() < width) return;
  uint8_t* const at = bytes.data() + below(bytes.size() - width + 1);
  uint64_t value = 0;
  std::memcpy(&value, at, width);
  switch (below(4)) {
    case 0:
      value = kNumbers[below(std::size(kNumbers))];
      break;
    case 1:
      value += 1 + below(4);
      break;
    case 2:
      value -= 1 + below(4);
      break;
    default:
      value *= 2;
      break;
  }
  std::memcpy(at, &value, width);
}

void Mutator::change(Bytes& bytes) {
  const size_t size = bytes.size();
  const auto at = [&](size_t i) { return bytes.begin() + static_cast<std::ptrdiff_t>(i); };
  const size_t from = below(size);
  const size_t count = std::min(size - from, 1 + below(below(4) == 0 ? 256 : 8));
  switch (below(9)) {
    case 0:
      if (size > 0) bytes[from] ^= static_cast<uint8_t>(1u << below(8));
      break;
    case 1:
      if (size > 0) bytes[from] = static_cast<uint8_t>(random_());
      break;
    case 2:
    case 3:
      change_number(bytes);
      break;
    case 4:
      bytes.erase(at(from), at(from + count));
      break;
    case 5: {
      const Bytes doubled(at(from), at(from + count));
      bytes.insert(at(from), doubled.begin(), doubled.end());
      break;
    }
    case 6: {
      const Bytes& other = corpus_[below(corpus_.size())];
      const size_t other_from = below(other.size());
      const size_t other_count = other.empty() ? 0 : 1 + below(other.size() - other_from);
      const auto begin = other.begin() + static_cast<std::ptrdiff_t>(other_from);
      bytes.insert(at(below(2) == 0 ? size : from), begin, begin + static_cast<std::ptrdiff_t>(other_count));
      break;
    }
    case 7:
      bytes.resize(from);
      break;
    default:
      bytes.insert(bytes.end(), 1 + below(64), static_cast<uint8_t>(random_()));
      break;
  }
  if (bytes.size() > kBytesMax) bytes.resize(kBytesMax);
}

Bytes Mutator::next() {
  Bytes bytes = corpus_[below(corpus_.size())];
  for (size_t left = 1 + below(kChangesMax); left > 0; --left) change(bytes);
  return bytes;
}

}  // namespace kvstore::fuzz
