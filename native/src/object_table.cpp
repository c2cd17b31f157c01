#include "kvstore/object_table.hpp"

#include <cstring>
#include <stdexcept>

namespace kvstore {
namespace {

void require(bool invariant, const char* what) {
  if (!invariant) throw std::logic_error(std::string("object table: ") + what);
}

}  // namespace

ObjectTable::ObjectTable(uint8_t* base, uint64_t data_offset, uint64_t capacity_bytes, uint32_t slot_count,
                         const std::string& eviction_policy, uint64_t pinned_bytes_max)
    : base_(base),
      data_offset_(data_offset),
      slots_(base, slot_count),
      index_(slot_count),
      extents_(capacity_bytes),
      namespaces_(slot_count),
      pins_(slot_count, pinned_bytes_max),
      policy_(make_eviction_policy(eviction_policy, slot_count)),
      private_(slot_count) {
  free_slots_.reserve(slot_count);
  for (uint32_t slot = slot_count; slot-- > 0;) free_slots_.push_back(slot);
}

uint32_t ObjectTable::find(const Fingerprint& fp, const Key& key) const {
  const uint32_t slot = index_.find(fp);
  return slot != kNoSlot && slots_.header(slot).has_key(key) ? slot : kNoSlot;
}

uint32_t ObjectTable::reserve(const Key& key, uint32_t length, uint32_t depth, std::string_view text) {
  if (free_slots_.empty()) return kNoSlot;
  const auto offset = extents_.allocate(uint64_t{length} + text.size());
  if (!offset) return kNoSlot;
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_.begin_write(slot, key, data_offset_ + *offset, length, static_cast<uint16_t>(text.size()), depth);
  if (!text.empty()) std::memcpy(data(slot) + length, text.data(), text.size());
  private_[slot] = Private{};
  return slot;
}

JournalEntry ObjectTable::seal(uint32_t slot, const Fingerprint& fp, uint8_t digest_alg, uint32_t digest) {
  require(index_.find(fp) == kNoSlot, "seal of a fingerprint that is taken");
  slots_.seal(slot, digest_alg, digest);
  const SlotHeader& h = slots_.header(slot);
  index_.insert(fp, slot);
  namespaces_.add(slot, h.ns);
  policy_->on_insert(slot, h.stored_bytes(), h.depth);
  return {fp, h.ns, h.length, JournalOp::kAdd};
}

void ObjectTable::abandon(uint32_t slot) {
  require(slots_.header(slot).state == SlotState::kWriting, "abandon of a slot that nobody writes");
  free_memory(slot);
}

bool ObjectTable::unhold(uint32_t slot) {
  Private& p = private_[slot];
  require(p.readers > 0, "release of a slot that nobody reads");
  if (--p.readers > 0 || !p.removed) return false;
  free_memory(slot);
  return true;
}

bool ObjectTable::pin(uint32_t slot, uint64_t now_ms, uint32_t pin_ms) {
  return pins_.pin(slot, ExtentAllocator::rounded(slots_.header(slot).stored_bytes()), now_ms, pin_ms);
}

JournalEntry ObjectTable::unlist(uint32_t slot) {
  const SlotHeader& h = slots_.header(slot);
  require(h.state == SlotState::kSealed && !private_[slot].removed, "removal of a slot that is not findable");
  const JournalEntry entry{index_.fingerprint(slot), h.ns, h.length, JournalOp::kRemove};
  require(index_.find(entry.fp) == slot && index_.erase(entry.fp), "sealed slot missing from the index");
  namespaces_.remove(slot, h.ns);
  policy_->on_remove(slot);
  pins_.forget(slot);
  return entry;
}

JournalEntry ObjectTable::remove(uint32_t slot) {
  const JournalEntry entry = unlist(slot);
  if (private_[slot].readers == 0)
    free_memory(slot);
  else
    private_[slot].removed = true;
  return entry;
}

bool ObjectTable::quarantine(uint32_t slot, std::vector<JournalEntry>& removed) {
  if (slots_.header(slot).state != SlotState::kSealed || private_[slot].removed) return false;
  removed.push_back(unlist(slot));
  slots_.quarantine(slot);
  ++quarantined_count_;
  return true;
}

void ObjectTable::free_memory(uint32_t slot) {
  const SlotHeader& h = slots_.header(slot);
  const uint64_t offset = h.offset, size = h.stored_bytes();
  slots_.free(slot);  // the generation moves on before the extent can be given to anyone else
  extents_.free(offset - data_offset_, size);
  private_[slot] = Private{};
  free_slots_.push_back(slot);
}

uint64_t ObjectTable::evict(uint64_t wanted_bytes, uint32_t steps_max, uint64_t now_ms,
                            std::vector<JournalEntry>& removed) {
  const uint64_t used_before = used_bytes();
  for (uint32_t step = 0; step < steps_max && used_before - used_bytes() < wanted_bytes; ++step) {
    // Nobody can find an object of a retired namespace, so its pins promise nothing, and a reader only delays
    // its memory.
    const uint32_t retired = namespaces_.retired_slot();
    if (retired != kNoSlot) {
      removed.push_back(remove(retired));
      continue;
    }
    const uint32_t victim = policy_->coldest();
    if (victim == kNoSlot) break;
    if (private_[victim].readers > 0 || pins_.is_pinned(victim, now_ms))
      policy_->on_spare(victim);
    else
      removed.push_back(remove(victim));
  }
  return used_before - used_bytes();
}

uint64_t ObjectTable::pinned_bytes(uint64_t now_ms) {
  pins_.expire(now_ms);
  return pins_.pinned_bytes();
}

bool ObjectTable::is_fuller_than(double fraction) const {
  const double slots_used = slot_count() - slots_free();
  return static_cast<double>(used_bytes()) > fraction * static_cast<double>(capacity_bytes()) ||
         slots_used > fraction * slot_count();
}

std::vector<JournalEntry> ObjectTable::inventory() const {
  std::vector<JournalEntry> entries;
  entries.reserve(object_count());
  for (uint32_t slot = 0; slot < slot_count(); ++slot) {
    const SlotHeader& h = slots_.header(slot);
    if (h.state != SlotState::kSealed || private_[slot].removed || namespaces_.is_retired(h.ns)) continue;
    entries.push_back({index_.fingerprint(slot), h.ns, h.length, JournalOp::kAdd});
  }
  return entries;
}

}  // namespace kvstore
