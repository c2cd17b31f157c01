#include "segment/slot_table.hpp"

#include <algorithm>
#include <new>
#include <random>

#include "base/digest.hpp"

namespace kvstore {
namespace {

// Orders the odd generation before the changes that follow it, for readers in other processes. It has to be a fence: a
// release store orders what comes before it, and an exchange with any order may become visible after plain stores behind
// it where it is made of load and store (ARM). A release fence keeps stores behind it behind those before it: the
// compiler moves no store over it, whether the CPU needs an instruction for it (ARM: DMB) or not (x86). GCC's
// ThreadSanitizer has no model of fences (and says so at each one), and inside this process nobody reads headers without
// the owner's lock.
void publish_odd_generation() {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

bool is_intact(const SlotHeader& h) {
  return h.magic == SlotHeader::kMagic && h.version == SlotHeader::kVersion &&
         h.generation.load(std::memory_order_relaxed) % 2 == 0;
}

// Below 2^62, so that no slot lives to see it run over.
uint64_t unguessable() {
  std::random_device device;
  return ((uint64_t{device()} << 32 | device()) >> 2) & ~uint64_t{1};
}

}  // namespace

uint32_t SlotHeader::check_at(uint64_t at_generation) const {
  const uint32_t from = crc32c(0, &at_generation, sizeof(at_generation));
  return crc32c(from, &magic, offsetof(SlotHeader, removed) - offsetof(SlotHeader, magic));
}

SlotTable::SlotTable(uint8_t* base, uint64_t first_chunk_bytes, uint32_t chunks_max, bool kept)
    : base_(base), next_generation_(unguessable()), chunks_(std::min(chunks_max, kChunksMax)) {
  if (kept)
    adopt_chunk(kFirstChunkOffset);
  else
    add_chunk(kFirstChunkOffset, first_chunk_bytes);
}

bool SlotTable::is_chunk(const uint8_t* base, uint64_t map_bytes, uint64_t offset) {
  if (offset % sizeof(SlotHeader) != 0 || offset < kFirstChunkOffset || offset > map_bytes ||
      map_bytes - offset < 2 * sizeof(SlotHeader))
    return false;
  const auto& h = *reinterpret_cast<const ChunkHeader*>(base + offset);
  return h.magic == ChunkHeader::kMagic && h.version == ChunkHeader::kVersion &&
         h.chunk_bytes % sizeof(SlotHeader) == 0 && h.chunk_bytes >= 2 * sizeof(SlotHeader) &&
         h.chunk_bytes <= kChunkBytesMax && h.chunk_bytes <= map_bytes - offset;
}

uint32_t SlotTable::take_number() {
  const auto unused =
      std::find_if(chunks_.begin(), chunks_.end(), [](const Chunk& c) { return c.places == 0; });
  if (unused == chunks_.end()) return kChunksMax;
  list_.reserve(list_.size() + 1);
  const auto number = static_cast<uint32_t>(unused - chunks_.begin());
  chunks_end_ = std::max(chunks_end_, number + 1);
  return number;
}

uint64_t SlotTable::fresh_generation() noexcept {
  return next_generation_ += uint64_t{1} << 32;  // more than a slot goes through while its chunk lasts
}

uint32_t SlotTable::add_chunk(uint64_t offset, uint64_t chunk_bytes) {
  const uint32_t number = take_number();
  if (number == kChunksMax) return number;
  Chunk& chunk = chunks_[number];
  chunk.offset = offset;
  chunk.places = static_cast<uint32_t>(std::min(chunk_bytes, kChunkBytesMax) / sizeof(SlotHeader));
  const uint64_t generation = fresh_generation();
  auto* headers = reinterpret_cast<SlotHeader*>(base_ + offset);
  for (uint32_t place = 1; place < chunk.places; ++place) {
    auto* header = new (&headers[place]) SlotHeader{};
    header->generation.store(generation, std::memory_order_relaxed);
    header->magic = SlotHeader::kMagic;
    header->version = SlotHeader::kVersion;
    header->check = header->check_at(generation);
  }
  auto* h = new (base_ + offset) ChunkHeader{};
  h->version = ChunkHeader::kVersion;
  h->chunk_bytes = uint64_t{chunk.places} * sizeof(SlotHeader);
  h->magic = ChunkHeader::kMagic;
  std::atomic_thread_fence(std::memory_order_release);  // linked when it is whole
  if (!list_.empty()) chunk_header(list_.back()).next = offset;
  list_.push_back(number);
  return number;
}

uint32_t SlotTable::adopt_chunk(uint64_t offset) {
  const uint32_t number = take_number();
  if (number == kChunksMax) return number;
  const auto& h = *reinterpret_cast<const ChunkHeader*>(base_ + offset);
  chunks_[number] = {offset, static_cast<uint32_t>(h.chunk_bytes / sizeof(SlotHeader))};
  list_.push_back(number);
  return number;
}

void SlotTable::remove_chunk(uint32_t chunk) noexcept {
  const auto at = std::find(list_.begin(), list_.end(), chunk);
  if (at == list_.end() || at == list_.begin()) return;
  const uint64_t next = std::next(at) == list_.end() ? 0 : chunks_[*std::next(at)].offset;
  chunk_header(*std::prev(at)).next = next;
  std::atomic_signal_fence(std::memory_order_release);  // who is killed here leaves a chain that is whole
  chunk_header(chunk).magic = 0;
  list_.erase(at);
  chunks_[chunk] = Chunk{};
}

template <typename Change>
bool SlotTable::transition(uint32_t slot, bool legal, Change&& change) noexcept {
  SlotHeader& h = at(slot);
  if (!legal || !is_intact(h)) return false;
  const uint64_t generation = h.generation.load(std::memory_order_relaxed);
  h.generation.store(generation + 1, std::memory_order_relaxed);
  publish_odd_generation();
  change(h);
  h.check = h.check_at(generation + 2);
  h.generation.store(generation + 2, std::memory_order_release);
  return true;
}

bool SlotTable::begin_write(uint32_t slot, const Key& key, uint64_t offset, uint32_t length,
                            uint16_t text_bytes, uint32_t depth) noexcept {
  return transition(slot, header(slot).state == SlotState::kFree, [&](SlotHeader& h) {
    h.state = SlotState::kWriting;
    h.digest_alg = 0;
    h.digest = 0;
    h.offset = offset;
    h.length = length;
    h.text_bytes = text_bytes;
    h.depth = depth;
    h.pool = key.pool;
    h.ns = key.ns;
    h.shard = key.shard;
    h.hash = key.hash;
    h.removed = 0;
    h.seq = 0;
  });
}

bool SlotTable::seal(uint32_t slot, uint8_t digest_alg, uint32_t digest, uint64_t seq) noexcept {
  return transition(slot, header(slot).state == SlotState::kWriting, [&](SlotHeader& h) {
    h.state = SlotState::kSealed;
    h.digest_alg = digest_alg;
    h.digest = digest;
    h.seq = seq;
  });
}

void SlotTable::set_removed(uint32_t slot, uint64_t seq) noexcept {
  SlotHeader& h = at(slot);
  h.seq = seq;
  std::atomic_signal_fence(
      std::memory_order_release);  // who is killed here leaves no mark without its number
  h.removed = 1;
}

bool SlotTable::quarantine(uint32_t slot) noexcept {
  return transition(slot, header(slot).state == SlotState::kSealed,
                    [](SlotHeader& h) { h.state = SlotState::kQuarantined; });
}

bool SlotTable::free(uint32_t slot) noexcept {
  const SlotState from = header(slot).state;
  return transition(slot, from == SlotState::kWriting || from == SlotState::kSealed,
                    [](SlotHeader& h) { h.state = SlotState::kFree; });
}

void SlotTable::condemn(uint32_t slot) noexcept {
  SlotHeader& h = at(slot);
  h.generation.fetch_or(1, std::memory_order_relaxed);
  publish_odd_generation();
  h.state = SlotState::kQuarantined;
}

void SlotTable::format(uint32_t slot) noexcept {
  SlotHeader& h = at(slot);
  h.generation.fetch_or(1, std::memory_order_relaxed);
  publish_odd_generation();
  h.magic = SlotHeader::kMagic;
  h.version = SlotHeader::kVersion;
  h.state = SlotState::kFree;
  h.removed = 0;
  h.seq = 0;
  const uint64_t generation = fresh_generation();
  h.check = h.check_at(generation);
  h.generation.store(generation, std::memory_order_release);
}

}  // namespace kvstore
