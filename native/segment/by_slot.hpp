// Something kept for each slot, in one piece of memory a chunk of slots: it grows and shrinks by chunks, and what is
// kept never moves. Not thread-safe as a whole: whoever adds and removes chunks is alone; a slot that somebody else
// may know of is one of a chunk that was added before, and stays while he may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvstore {

constexpr uint32_t kNoSlot = 0xFFFFFFFFu;
// Slot numbers inside of a segment: the chunk in the upper bits, the header's place in it in the lower ones. Place 0
// is the chunk's own header and no slot.
constexpr uint32_t kChunkBits = 12;
constexpr uint32_t kChunkSlots = 1u << kChunkBits;
constexpr uint32_t kChunksMax = (1u << (32 - kChunkBits)) - 1;  // kNoSlot is in none

constexpr uint32_t chunk_of(uint32_t slot) { return slot >> kChunkBits; }
constexpr uint32_t place_of(uint32_t slot) { return slot & (kChunkSlots - 1); }
constexpr uint32_t slot_at(uint32_t chunk, uint32_t place) { return chunk << kChunkBits | place; }

template <typename T>
class BySlot {
 public:
  explicit BySlot(uint32_t chunks_max) : chunks_(chunks_max) {}

  T& operator[](uint32_t slot) { return chunks_[chunk_of(slot)][place_of(slot)]; }
  const T& operator[](uint32_t slot) const { return chunks_[chunk_of(slot)][place_of(slot)]; }
  const T* address(uint32_t slot) const { return &chunks_[chunk_of(slot)][place_of(slot)]; }

  // `places`: of the chunk, its own header included. Throws std::bad_alloc and changes nothing.
  void add(uint32_t chunk, uint32_t places) { chunks_[chunk] = std::make_unique<T[]>(places); }
  void remove(uint32_t chunk) noexcept { chunks_[chunk].reset(); }

 private:
  std::vector<std::unique_ptr<T[]>> chunks_;
};

}  // namespace kvstore
