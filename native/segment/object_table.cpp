// The life of an object: reserved, sealed, removed, freed. Room for it is made in object_table_space.cpp, objects of a
// pool that was kept are taken over in object_table_adoption.cpp.
#include "segment/object_table.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <exception>
#include <random>
#include <stdexcept>

namespace kvstore {
namespace {

constexpr uint32_t kExpiredSteps = 1024;  // retentions ended by a look at the totals
constexpr uint64_t kChunkBytesMin = 4096;
// Of the pool, so that what a chunk takes is little of it.
constexpr uint64_t kChunkShare = 128;

uint64_t chunk_bytes_of(uint64_t capacity_bytes) {
  uint64_t bytes = SlotTable::kChunkBytesMax;
  while (bytes > kChunkBytesMin && bytes > capacity_bytes / kChunkShare) bytes /= 2;
  return bytes;
}

uint32_t chunks_max_of(uint64_t capacity_bytes) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(kChunksMax, 1 + capacity_bytes / chunk_bytes_of(capacity_bytes)));
}

const ObjectTable::Options& checked(const uint8_t* base, const ObjectTable::Options& o) {
  if (o.kept && !SlotTable::is_chunk(base, o.data_offset, SlotTable::kFirstChunkOffset))
    throw std::invalid_argument("no slot headers lie where those of a pool begin");
  return o;
}

}  // namespace

ObjectTable::ObjectTable(uint8_t* base, const Options& options)
    : base_(base),
      data_offset_(checked(base, options).data_offset),
      map_bytes_(options.data_offset + options.capacity_bytes),
      chunk_bytes_(chunk_bytes_of(options.capacity_bytes)),
      on_removal_(options.on_removal),
      stays_(options.stays),
      slots_(base, options.first_chunk_bytes, chunks_max_of(options.capacity_bytes), options.kept),
      records_(chunks_max_of(options.capacity_bytes)),
      shards_(slots_, records_, chunks_max_of(options.capacity_bytes), options.pinned_bytes_max,
              options.owner_pinned_bytes_max, options.held_bytes),
      extents_(options.capacity_bytes),
      addresses_(options.capacity_bytes, chunks_max_of(options.capacity_bytes)),
      namespaces_(chunks_max_of(options.capacity_bytes)),
      chains_(chunks_max_of(options.capacity_bytes)),
      batches_(options.batch_bytes_max, options.batches_bytes_max),
      policy_(make_eviction_policy(options.eviction_policy, slots_end())),
      retention_(
          options.retention, [this](uint32_t slot, Keep keep) { set_keep(slot, keep); },
          std::random_device{}()) {
  track_chunk(0);
  if (!options.kept)
    for (uint32_t place = slots_.places(0); --place > 0;) give_slot(slot_at(0, place));
}

void ObjectTable::set_batch(uint32_t slot, uint32_t batch) noexcept {
  ObjectRecord& record = records_[slot];
  if (record.batch == batch || batch == 0) return;
  if (batches_.keep(batch, ExtentAllocator::rounded(record.stored_bytes()))) record.batch = batch;
}

ObjectTable::Reserved ObjectTable::reserve(const Key& key, uint32_t length, uint32_t depth,
                                           std::string_view text) {
  const uint64_t bytes = uint64_t{length} + text.size();
  const auto text_bytes = static_cast<uint16_t>(text.size());
  quotas_.expect(key.ns);
  while (slots_free_ > 0 || grow()) {
    const auto extent = extents_.allocate(bytes);
    if (!extent) return {kNoSlot, Short::kBytes};
    const uint32_t slot = take_slot();
    const uint64_t offset = data_offset_ + *extent;
    if (!slots_.begin_write(slot, key, offset, length, text_bytes, depth)) {
      free_extent(*extent, bytes);  // nobody knows it as this slot's
      condemn(slot);
      continue;
    }
    ObjectRecord& record = records_[slot];
    record = ObjectRecord{};
    record.offset = offset;
    record.ns = key.ns;
    record.length = length;
    record.text_bytes = text_bytes;
    record.state = SlotState::kWriting;
    ++writing_count_;
    quotas_.added(record.ns, record.length);
    addresses_.add(slot, *extent, ExtentAllocator::rounded(bytes));
    if (!text.empty()) std::memcpy(data(slot) + length, text.data(), text.size());
    return {slot, Short::kNothing};
  }
  return {kNoSlot, Short::kSlots};
}

std::optional<JournalEntry> ObjectTable::seal(uint32_t slot, const Fingerprint& fp, uint8_t digest_alg,
                                              uint32_t digest, uint64_t seq, wire::Intent intent) noexcept {
  ObjectRecord& record = records_[slot];
  if (!keeps_rule(record.state == SlotState::kWriting)) return std::nullopt;
  if (!keeps_rule(occupant(fp) == kNoSlot)) {
    free_memory(slot);
    return std::nullopt;
  }
  if (!is_as_written(slot) || !slots_.seal(slot, digest_alg, digest, seq)) {
    condemn(slot);
    return std::nullopt;
  }
  --writing_count_;
  record.state = SlotState::kSealed;
  record.seq = seq;
  record.used_at = ++uses_;
  try {  // these allocate
    namespaces_.add(slot, record.ns);
    shards_.insert(slot, fp);
  } catch (const std::exception&) {
    keeps_rule(namespaces_.remove(slot, record.ns));
    quotas_.removed(record.ns, record.length);
    free_memory(slot);
    return std::nullopt;
  }
  ++ranked_count_;
  record.keep = retention_.came({slot, record.ns, fp.lo, taken_bytes(slot)}, intent, ranked_count_);
  const SlotHeader& header = slots_.header(slot);
  chains_.came(slot, {header.ns, header.pool, header.shard, header.depth});
  policy_->on_insert({slot, fp.lo, record.stored_bytes(), header.depth, record.keep});
  return JournalEntry{fp, record.ns, record.length, JournalOp::kAdd};
}

void ObjectTable::abandon(uint32_t slot) noexcept {
  if (keeps_rule(records_[slot].state == SlotState::kWriting)) free_memory(slot);
}

void ObjectTable::use(uint32_t slot, const Fingerprint& fp) noexcept {
  // The chunk may have gone since, and a shorter one have come in its place.
  if (!slots_.has_chunk(chunk_of(slot)) || place_of(slot) >= slots_.places(chunk_of(slot))) return;
  if (!is_findable(slot) || shards_.fingerprint(slot) != fp) return;
  records_[slot].used_at = ++uses_;
  retention_.used(slot, records_[slot].ns, fp.lo, ranked_count_);
  if (quotas_.is_limited(records_[slot].ns)) namespaces_.touch(slot, records_[slot].ns);
  chains_.used(slot);
  policy_->on_use(slot);
}

void ObjectTable::set_keep(uint32_t slot, Keep keep) noexcept {
  if (!is_findable(slot)) return;
  records_[slot].keep = keep;
  policy_->on_keep(slot, keep);
}

bool ObjectTable::keep(uint32_t slot, const wire::KeepWish& wish, uint64_t now_ms) noexcept {
  return keeps_rule(is_findable(slot)) && retention_.keep(kept_object(slot), wish, now_ms);
}

const Retention& ObjectTable::retention(uint64_t now_ms) noexcept {
  retention_.expire(now_ms, kExpiredSteps);
  return retention_;
}

uint32_t ObjectTable::next_of(const NamespaceId& ns, uint32_t first, uint32_t end) const {
  for (uint32_t slot = first; slot < end; ++slot) {
    if (!slots_.has_chunk(chunk_of(slot)) || place_of(slot) >= slots_.places(chunk_of(slot)))
      slot = slot_at(chunk_of(slot), kChunkSlots - 1);
    else if (place_of(slot) != 0 && records_[slot].ns == ns && is_findable(slot))
      return slot;
  }
  return end;
}

bool ObjectTable::keeps_rule(bool kept) noexcept {
  misuse_count_ += !kept;
  return kept;
}

bool ObjectTable::is_as_written(uint32_t slot) const {
  const SlotHeader& h = slots_.header(slot);
  const ObjectRecord& r = records_[slot];
  return h.state == r.state && h.offset == r.offset && h.length == r.length && h.text_bytes == r.text_bytes &&
         h.ns == r.ns;
}

JournalEntry ObjectTable::tell_removal(uint32_t slot) noexcept {
  const ObjectRecord& record = records_[slot];
  JournalEntry entry{shards_.fingerprint(slot), record.ns, record.length, JournalOp::kRemove};
  if (stays_ && stays_(entry.fp, entry.ns))
    entry.op = JournalOp::kStays;
  else if (on_removal_)
    on_removal_(entry);
  return entry;
}

// Of an object that is out of the index: its readers keep the memory, or nobody does.
JournalEntry ObjectTable::take_out(uint32_t slot, bool idle, uint64_t seq) noexcept {
  const JournalEntry entry = tell_removal(slot);
  keeps_rule(namespaces_.remove(slot, records_[slot].ns));
  quotas_.removed(records_[slot].ns, records_[slot].length);
  retention_.forget(slot, records_[slot].ns);
  chains_.gone(slot);
  --ranked_count_;
  slots_.set_removed(slot, seq);
  if (idle)
    free_memory(slot);
  else
    ++removed_held_count_;
  return entry;
}

JournalEntry ObjectTable::remove(uint32_t slot, uint64_t seq) noexcept {
  assert(is_findable(slot));
  policy_->on_remove(slot);
  return take_out(slot, shards_.take_out(slot), seq);
}

void ObjectTable::free_removed(uint32_t slot) noexcept {
  --removed_held_count_;
  if (records_[slot].state == SlotState::kSealed) free_memory(slot);  // a quarantined one stays
}

std::optional<JournalEntry> ObjectTable::quarantine(uint32_t slot, uint64_t seq) noexcept {
  if (!is_findable(slot)) return std::nullopt;
  policy_->on_remove(slot);
  const bool idle = shards_.take_out(slot);
  const JournalEntry entry = tell_removal(slot);
  keeps_rule(namespaces_.remove(slot, records_[slot].ns));
  quotas_.removed(records_[slot].ns, records_[slot].length);
  retention_.forget(slot, records_[slot].ns);
  chains_.gone(slot);
  --ranked_count_;
  if (!idle) ++removed_held_count_;
  slots_.set_removed(slot, seq);
  if (is_as_written(slot) && slots_.quarantine(slot)) {
    records_[slot].state = SlotState::kQuarantined;
    ++quarantined_count_;
  } else {
    condemn(slot);
  }
  return entry;
}

void ObjectTable::free_memory(uint32_t slot) noexcept {
  const ObjectRecord record = records_[slot];
  // The generation moves on before the extent can be given to anyone else. Where it can't, whoever is copying out of this memory
  // would not notice: it is never used again.
  if (!is_as_written(slot) || !slots_.free(slot)) return condemn(slot);
  if (record.state == SlotState::kWriting) {
    --writing_count_;
    quotas_.removed(record.ns, record.length);
  }
  addresses_.remove(slot, record.offset - data_offset_, ExtentAllocator::rounded(record.stored_bytes()));
  free_extent(record.offset - data_offset_, record.stored_bytes());
  give_slot(slot);
}

void ObjectTable::free_extent(uint64_t offset, uint64_t size_bytes) noexcept {
  try {
    extents_.free(offset, size_bytes);
  } catch (const std::exception&) {  // out of memory: the extent is lost, and counted as used
    ++misuse_count_;
  }
}

void ObjectTable::condemn(uint32_t slot) noexcept {
  if (records_[slot].state == SlotState::kWriting) {
    --writing_count_;
    quotas_.removed(records_[slot].ns, records_[slot].length);
  }
  slots_.condemn(slot);
  records_[slot].state = SlotState::kQuarantined;
  ++quarantined_count_;
  ++damaged_count_;
}

uint32_t ObjectTable::list(uint32_t first, uint32_t end, size_t entries_max,
                           std::vector<JournalEntry>& entries) const {
  uint32_t slot = first;
  for (; slot < end && entries.size() < entries_max; ++slot) {
    if (!slots_.has_chunk(chunk_of(slot)) || place_of(slot) >= slots_.places(chunk_of(slot))) {
      slot = slot_at(chunk_of(slot), kChunkSlots - 1);
      continue;
    }
    const ObjectRecord& record = records_[slot];
    if (place_of(slot) == 0 || !is_findable(slot) || namespaces_.is_retired(record.ns)) continue;
    entries.push_back({shards_.fingerprint(slot), record.ns, record.length, JournalOp::kAdd});
  }
  return std::min(slot, end);
}

void ObjectTable::list_ranked(uint32_t first, uint32_t end, uint32_t since, std::vector<Ranked>& out) const {
  for (uint32_t slot = first; slot < end; ++slot) {
    if (!slots_.has_chunk(chunk_of(slot)) || place_of(slot) >= slots_.places(chunk_of(slot))) {
      slot = slot_at(chunk_of(slot), kChunkSlots - 1);
      continue;
    }
    const ObjectRecord& record = records_[slot];
    if (place_of(slot) == 0 || !is_findable(slot) || namespaces_.is_retired(record.ns)) continue;
    const Keep wish = retention_.of(slot);
    const uint64_t wished = wish == Keep::kRetained ? 0 : wish == Keep::kDemoted ? 2 : 1;
    const auto age = static_cast<int32_t>(since - record.used_at);
    out.push_back({wished << 32 | static_cast<uint32_t>(std::max(age, 0)),
                   slot,
                   {shards_.fingerprint(slot), record.ns, record.length, JournalOp::kAdd}});
  }
}

}  // namespace kvstore
