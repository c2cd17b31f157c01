// One T a slot, in chunks: growing allocates, and never moves what is there, so that it pauses nobody.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace kvstore {

template <typename T>
class ChunkedArray {
 public:
  explicit ChunkedArray(uint32_t size) { grow(size); }

  // Never shrinks. Strong exception guarantee for what is there.
  void grow(uint32_t size) {
    while (uint64_t{chunks_.size()} * kChunk < size) chunks_.push_back(std::make_unique<T[]>(kChunk));
  }
  T& operator[](uint32_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const T& operator[](uint32_t i) const { return chunks_[i / kChunk][i % kChunk]; }

 private:
  static constexpr uint32_t kChunk = 4096;
  std::vector<std::unique_ptr<T[]>> chunks_;
};

}  // namespace kvstore
