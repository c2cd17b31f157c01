#include "segment/slot_table.hpp"

#include <new>

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

}  // namespace

SlotTable::SlotTable(void* base, uint32_t slot_count)
    : headers_(static_cast<SlotHeader*>(base)), slot_count_(slot_count) {
  for (uint32_t i = 0; i < slot_count; ++i) {
    auto* header = new (&headers_[i]) SlotHeader{};
    header->magic = SlotHeader::kMagic;
    header->version = SlotHeader::kVersion;
  }
}

template <typename Change>
bool SlotTable::transition(uint32_t slot, bool legal, Change&& change) noexcept {
  SlotHeader& h = headers_[slot];
  if (!legal || !is_intact(h)) return false;
  const uint64_t generation = h.generation.load(std::memory_order_relaxed);
  h.generation.store(generation + 1, std::memory_order_relaxed);
  publish_odd_generation();
  change(h);
  h.generation.store(generation + 2, std::memory_order_release);
  return true;
}

bool SlotTable::begin_write(uint32_t slot, const Key& key, uint64_t offset, uint32_t length,
                            uint16_t text_bytes, uint32_t depth) noexcept {
  return transition(slot, headers_[slot].state == SlotState::kFree, [&](SlotHeader& h) {
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
  });
}

bool SlotTable::seal(uint32_t slot, uint8_t digest_alg, uint32_t digest) noexcept {
  return transition(slot, headers_[slot].state == SlotState::kWriting, [&](SlotHeader& h) {
    h.state = SlotState::kSealed;
    h.digest_alg = digest_alg;
    h.digest = digest;
  });
}

bool SlotTable::quarantine(uint32_t slot) noexcept {
  return transition(slot, headers_[slot].state == SlotState::kSealed,
                    [](SlotHeader& h) { h.state = SlotState::kQuarantined; });
}

bool SlotTable::free(uint32_t slot) noexcept {
  const SlotState from = headers_[slot].state;
  return transition(slot, from == SlotState::kWriting || from == SlotState::kSealed,
                    [](SlotHeader& h) { h.state = SlotState::kFree; });
}

void SlotTable::condemn(uint32_t slot) noexcept {
  SlotHeader& h = headers_[slot];
  h.generation.fetch_or(1, std::memory_order_relaxed);
  publish_odd_generation();
  h.state = SlotState::kQuarantined;
}

}  // namespace kvstore
