#include "segment/object_table.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <exception>

namespace kvstore {

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
  while (!free_slots_.empty()) {
    const auto offset = extents_.allocate(uint64_t{length} + text.size());
    if (!offset) return kNoSlot;
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    slots_used_end_ = std::max(slots_used_end_, slot + 1);
    private_[slot] = {0,
                      data_offset_ + *offset,
                      key.ns,
                      length,
                      0,
                      static_cast<uint16_t>(text.size()),
                      SlotState::kWriting,
                      false};
    if (slots_.begin_write(slot, key, data_offset_ + *offset, length, static_cast<uint16_t>(text.size()),
                           depth)) {
      if (!text.empty()) std::memcpy(data(slot) + length, text.data(), text.size());
      return slot;
    }
    extents_.free(*offset, uint64_t{length} + text.size());  // nobody knows it as this slot's
    condemn(slot);
  }
  return kNoSlot;
}

std::optional<JournalEntry> ObjectTable::seal(uint32_t slot, const Fingerprint& fp, uint8_t digest_alg,
                                              uint32_t digest) noexcept {
  Private& p = private_[slot];
  if (!keeps_rule(p.state == SlotState::kWriting)) return std::nullopt;
  if (!keeps_rule(index_.find(fp) == kNoSlot)) {
    free_memory(slot);
    return std::nullopt;
  }
  if (!is_as_written(slot) || !slots_.seal(slot, digest_alg, digest)) {
    condemn(slot);
    return std::nullopt;
  }
  p.state = SlotState::kSealed;
  try {
    namespaces_.add(slot, p.ns);  // the only one of the three that allocates
  } catch (const std::exception&) {
    free_memory(slot);
    return std::nullopt;
  }
  index_.insert(fp, slot);
  policy_->on_insert({slot, fp.lo, p.stored_bytes(), slots_.header(slot).depth, Keep::kNormal});
  return JournalEntry{fp, p.ns, p.length, JournalOp::kAdd};
}

void ObjectTable::abandon(uint32_t slot) noexcept {
  if (keeps_rule(private_[slot].state == SlotState::kWriting)) free_memory(slot);
}

bool ObjectTable::unhold(uint32_t slot) noexcept {
  Private& p = private_[slot];
  if (!keeps_rule(p.readers > 0)) return false;
  if (--p.readers > 0 || !p.removed) return false;
  free_memory(slot);
  return true;
}

bool ObjectTable::pin(uint32_t slot, uint64_t now_ms, uint32_t pin_ms) {
  return pins_.pin(slot, ExtentAllocator::rounded(private_[slot].stored_bytes()), now_ms, pin_ms);
}

bool ObjectTable::keeps_rule(bool kept) noexcept {
  misuse_count_ += !kept;
  return kept;
}

bool ObjectTable::is_as_written(uint32_t slot) const {
  const SlotHeader& h = slots_.header(slot);
  const Private& p = private_[slot];
  return h.state == p.state && h.offset == p.offset && h.length == p.length && h.text_bytes == p.text_bytes &&
         h.ns == p.ns;
}

JournalEntry ObjectTable::unlist(uint32_t slot) {
  const Private& p = private_[slot];
  const JournalEntry entry{index_.fingerprint(slot), p.ns, p.length, JournalOp::kRemove};
  index_.erase(entry.fp);
  keeps_rule(namespaces_.remove(slot, p.ns));
  pins_.forget(slot);
  return entry;
}

JournalEntry ObjectTable::remove(uint32_t slot) noexcept {
  assert(is_findable(slot));
  policy_->on_remove(slot);
  return take_out(slot);
}

JournalEntry ObjectTable::take_out(uint32_t slot) noexcept {
  const JournalEntry entry = unlist(slot);
  if (private_[slot].readers == 0)
    free_memory(slot);
  else
    private_[slot].removed = true;
  return entry;
}

std::optional<JournalEntry> ObjectTable::quarantine(uint32_t slot) noexcept {
  if (!is_findable(slot)) return std::nullopt;
  policy_->on_remove(slot);
  const JournalEntry entry = unlist(slot);
  if (is_as_written(slot) && slots_.quarantine(slot)) {
    private_[slot].state = SlotState::kQuarantined;
    ++quarantined_count_;
  } else {
    condemn(slot);
  }
  return entry;
}

void ObjectTable::free_memory(uint32_t slot) noexcept {
  const Private& p = private_[slot];
  // The generation moves on before the extent can be given to anyone else. Where it can't, whoever is copying out of this memory
  // would not notice: it is never used again.
  if (!is_as_written(slot) || !slots_.free(slot)) return condemn(slot);
  try {
    extents_.free(p.offset - data_offset_, p.stored_bytes());
  } catch (const std::exception&) {  // out of memory: the extent is lost, and counted as used
    ++misuse_count_;
  }
  private_[slot] = Private{};
  free_slots_.push_back(slot);  // its capacity is that of all slots
}

void ObjectTable::condemn(uint32_t slot) noexcept {
  slots_.condemn(slot);
  private_[slot].state = SlotState::kQuarantined;
  private_[slot].removed = false;
  ++quarantined_count_;
  ++damaged_count_;
}

uint64_t ObjectTable::evict(uint64_t wanted_bytes, uint32_t steps_max, uint64_t now_ms,
                            std::vector<JournalEntry>& removed) noexcept {
  const uint64_t used_before = used_bytes();
  for (uint32_t step = 0; step < steps_max && used_before - used_bytes() < wanted_bytes; ++step) {
    try {  // before anything is removed: what is removed has to be reported
      if (removed.size() == removed.capacity()) removed.reserve(std::max<size_t>(16, 2 * removed.size()));
    } catch (const std::exception&) {
      break;
    }
    // Nobody can find an object of a retired namespace, so its pins promise nothing, and a reader only delays
    // its memory.
    const uint32_t retired = namespaces_.retired_slot();
    if (retired != kNoSlot) {
      removed.push_back(remove(retired));
      continue;
    }
    const uint32_t victim = policy_->coldest();
    if (victim == kNoSlot) break;
    if (private_[victim].readers > 0 || pins_.is_pinned(victim, now_ms)) {
      policy_->on_spare(victim);
    } else {
      policy_->on_evict(victim);
      removed.push_back(take_out(victim));
    }
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

uint32_t ObjectTable::list(uint32_t first, uint32_t end, size_t entries_max,
                           std::vector<JournalEntry>& entries) const {
  uint32_t slot = first;
  for (; slot < end && entries.size() < entries_max; ++slot) {
    const Private& p = private_[slot];
    if (!is_findable(slot) || namespaces_.is_retired(p.ns)) continue;
    entries.push_back({index_.fingerprint(slot), p.ns, p.length, JournalOp::kAdd});
  }
  return slot;
}

}  // namespace kvstore
