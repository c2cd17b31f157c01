// What the slots of a segment hold: index, extents, namespaces, pins, readers and eviction order of one pool,
// kept in step. No locks, no waiting, no clock, no journal: every change of what is findable is returned as
// the journal entry that it is. Not thread-safe: the segment store's mutex guards all of it.
//
// The slot headers lie in shared memory for the readers of other processes. They can be damaged, so the table
// decides by what it keeps of its own: whatever a header holds, an object that goes is reported, and giving
// back what was reserved or held never fails. A slot whose header turns out to be damaged is quarantined.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "segment/eviction/eviction_policy.hpp"
#include "segment/extent_allocator.hpp"
#include "segment/journal.hpp"
#include "segment/namespace_table.hpp"
#include "segment/pin_table.hpp"
#include "segment/slot_index.hpp"
#include "segment/slot_table.hpp"

namespace kvstore {

class ObjectTable {
 public:
  // `base` is the zeroed map of the pool: the slot table at 0, objects from data_offset on. It outlives the
  // table.
  ObjectTable(uint8_t* base, uint64_t data_offset, uint64_t capacity_bytes, uint32_t slot_count,
              const std::string& eviction_policy, uint64_t pinned_bytes_max);

  // ---- finding
  void prefetch(const Fingerprint& fp) const { index_.prefetch(fp); }
  // The sealed slot of exactly this key, or kNoSlot.
  uint32_t find(const Fingerprint& fp, const Key& key) const;
  // The sealed slot of this fingerprint, whatever its key.
  uint32_t occupant(const Fingerprint& fp) const { return index_.find(fp); }
  const SlotHeader& header(uint32_t slot) const { return slots_.header(slot); }
  uint8_t* data(uint32_t slot) const { return base_ + private_[slot].offset; }
  uint64_t offset(uint32_t slot) const { return private_[slot].offset; }  // in the map
  uint32_t length(uint32_t slot) const { return private_[slot].length; }
  const NamespaceTable& namespaces() const { return namespaces_; }

  // ---- writing: reserve -> seal | abandon
  // A WRITING slot with memory for the object and its text (which is copied in), or kNoSlot when space or
  // slots are short.
  uint32_t reserve(const Key& key, uint32_t length, uint32_t depth, std::string_view text);
  // Makes the object findable. The fingerprint must have no occupant. Nothing: it can't be had (its header is
  // damaged, or memory is short), and the slot is given up.
  std::optional<JournalEntry> seal(uint32_t slot, const Fingerprint& fp, uint8_t digest_alg,
                                   uint32_t digest) noexcept;
  void abandon(uint32_t slot) noexcept;
  // The journal number of the object's ADD.
  void set_seq(uint32_t slot, uint64_t seq) { private_[slot].seq = seq; }
  uint64_t seq(uint32_t slot) const { return private_[slot].seq; }

  // ---- reading
  void use(uint32_t slot) { policy_->on_use(slot); }
  void hold(uint32_t slot) { ++private_[slot].readers; }
  // True when this freed the memory of an object that was removed while it was held.
  bool unhold(uint32_t slot) noexcept;
  // False: the pin budget is used up.
  bool pin(uint32_t slot, uint64_t now_ms, uint32_t pin_ms);

  // ---- removing
  // Takes a findable object away; the memory is free at once, or when its last reader leaves.
  JournalEntry remove(uint32_t slot) noexcept;
  // Not findable, and its memory is never used again. Nothing when the slot was removed already.
  std::optional<JournalEntry> quarantine(uint32_t slot) noexcept;
  // Removes objects, those of retired namespaces first, until `wanted_bytes` are freed or `steps_max` objects
  // were looked at; never pinned ones nor ones being read. Returns the bytes freed.
  uint64_t evict(uint64_t wanted_bytes, uint32_t steps_max, uint64_t now_ms,
                 std::vector<JournalEntry>& removed) noexcept;
  void retire(const NamespaceId& ns) { namespaces_.retire(ns); }
  void set_current(const std::vector<NamespaceId>& current, const std::vector<NamespaceId>& known) {
    namespaces_.set_current(current, known);
  }

  // ---- totals
  uint64_t capacity_bytes() const { return extents_.capacity_bytes(); }
  uint64_t used_bytes() const { return extents_.used_bytes(); }
  uint64_t pinned_bytes(uint64_t now_ms);
  uint32_t object_count() const { return index_.size(); }
  uint32_t slot_count() const { return slots_.slot_count(); }
  uint32_t slots_free() const { return static_cast<uint32_t>(free_slots_.size()); }
  uint32_t quarantined_count() const { return quarantined_count_; }
  // Quarantined slots whose header was not what this table had written.
  uint32_t damaged_count() const { return damaged_count_; }
  // Calls that broke this table's rules, and were ignored.
  uint64_t misuse_count() const { return misuse_count_; }
  bool is_fuller_than(double fraction) const;
  // Above every slot that was ever written to.
  uint32_t slots_used_end() const { return slots_used_end_; }
  // Appends the sealed objects of slots [first, end) whose namespaces are current, as ADD entries in slot order, until
  // `entries` has `entries_max`. Returns the slot to go on from.
  uint32_t list(uint32_t first, uint32_t end, size_t entries_max, std::vector<JournalEntry>& entries) const;

 private:
  struct Private {
    uint64_t seq = 0;
    uint64_t offset = 0;
    NamespaceId ns{};
    uint32_t length = 0;
    uint32_t readers = 0;
    uint16_t text_bytes = 0;
    SlotState state = SlotState::kFree;
    bool removed = false;  // sealed, but not findable: waits for its readers to leave
    uint64_t stored_bytes() const { return uint64_t{length} + text_bytes; }
  };
  bool is_findable(uint32_t slot) const {
    return private_[slot].state == SlotState::kSealed && !private_[slot].removed;
  }
  bool is_as_written(uint32_t slot) const;  // what the table keeps of a header is what the header says
  bool keeps_rule(bool kept) noexcept;      // counts it when not
  JournalEntry unlist(uint32_t slot);       // out of index, namespaces and pins; the policy is told before
  JournalEntry take_out(uint32_t slot) noexcept;  // unlists, and frees its memory or leaves it to the readers
  void free_memory(uint32_t slot) noexcept;
  void condemn(uint32_t slot) noexcept;

  uint8_t* base_;
  uint64_t data_offset_;
  SlotTable slots_;
  SlotIndex index_;
  ExtentAllocator extents_;
  NamespaceTable namespaces_;
  PinTable pins_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::vector<Private> private_;  // by slot; never in the shared map
  std::vector<uint32_t> free_slots_;
  uint32_t slots_used_end_ = 0;
  uint32_t quarantined_count_ = 0;
  uint32_t damaged_count_ = 0;
  uint64_t misuse_count_ = 0;
};

}  // namespace kvstore
