// Objects of a pool that another process has left. Of what its headers say nothing is believed that contradicts
// itself: a header costs its own slot at the most.
#include <exception>

#include "segment/object_table.hpp"

namespace kvstore {

bool ObjectTable::adopt_next_chunk() {
  const uint64_t offset = slots_.next_offset();
  if (offset < data_offset_ || !SlotTable::is_chunk(base_, map_bytes_, offset)) return false;
  const uint64_t bytes = reinterpret_cast<const ChunkHeader*>(base_ + offset)->chunk_bytes;
  if (!extents_.take(offset - data_offset_, bytes)) return false;
  uint32_t chunk = kChunksMax;
  try {
    chunk_extents_.insert({offset - data_offset_, bytes});
    chunk = slots_.adopt_chunk(offset);
    if (chunk != kChunksMax) track_chunk(chunk);
  } catch (...) {
    if (chunk != kChunksMax) slots_.remove_chunk(chunk);
    chunk_extents_.erase({offset - data_offset_, bytes});
    free_extent(offset - data_offset_, bytes);
    throw;
  }
  return chunk != kChunksMax;
}

bool ObjectTable::adopt(uint32_t slot, const Fingerprint& fp, uint64_t seq, Keep keep) {
  const SlotHeader& h = slots_.header(slot);
  ObjectRecord& record = records_[slot];
  if (record.state != SlotState::kFree || h.magic != SlotHeader::kMagic ||
      h.version != SlotHeader::kVersion || h.state != SlotState::kSealed || h.removed != 0 ||
      h.generation.load(std::memory_order_relaxed) % 2 != 0 || h.offset < data_offset_ ||
      occupant(fp) != kNoSlot || !extents_.take(h.offset - data_offset_, h.stored_bytes()))
    return false;
  record.seq = seq;
  slots_.set_seq(slot, seq);
  record.offset = h.offset;
  record.ns = h.ns;
  record.length = h.length;
  record.text_bytes = h.text_bytes;
  record.keep = keep;
  try {
    quotas_.expect(record.ns);
    namespaces_.add(slot, record.ns);
    shards_.insert(slot, fp);
  } catch (...) {
    keeps_rule(namespaces_.remove(slot, record.ns));
    free_extent(record.offset - data_offset_, record.stored_bytes());
    throw;
  }
  record.state = SlotState::kSealed;
  record.used_at = ++uses_;
  ++ranked_count_;
  quotas_.added(record.ns, record.length);
  addresses_.add(slot, record.offset - data_offset_, ExtentAllocator::rounded(record.stored_bytes()));
  chains_.came(slot, {h.ns, h.pool, h.shard, h.depth});
  policy_->on_insert({slot, fp.lo, record.stored_bytes(), h.depth, keep});
  return true;
}

void ObjectTable::end_adoption() {
  slots_.end_links();
  for (uint32_t chunk = slots_.chunks_end(); chunk-- > 0;) {
    if (!slots_.has_chunk(chunk)) continue;
    for (uint32_t place = slots_.places(chunk); --place > 0;) {
      const uint32_t slot = slot_at(chunk, place);
      if (records_[slot].state != SlotState::kFree) continue;
      slots_.format(slot);
      give_slot(slot);
      if (!slots_.has_chunk(chunk)) break;  // it was wholly free, and was given back
    }
  }
}

}  // namespace kvstore
