// What the slots of a segment hold: index, extents, chunks of slot headers, namespaces, pins, readers and eviction
// order of one pool, kept in step. No waiting, no clock, no journal: every change of what is findable is returned as
// the journal entry that it is. The store's main mutex guards all of it but what readers do, which is in shards().
//
// The slot headers lie in shared memory for the readers of other processes. They can be damaged, so the table
// decides by what it keeps of its own: whatever a header holds, an object that goes is reported, and giving
// back what was reserved or held never fails. A slot whose header turns out to be damaged is quarantined.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "segment/address_map.hpp"
#include "segment/chain_links.hpp"
#include "segment/eviction/eviction_policy.hpp"
#include "segment/extent_allocator.hpp"
#include "segment/journal.hpp"
#include "segment/namespace_quotas.hpp"
#include "segment/namespace_table.hpp"
#include "segment/object_record.hpp"
#include "segment/object_shards.hpp"
#include "segment/put_batches.hpp"
#include "segment/retention.hpp"
#include "segment/slot_table.hpp"
#include "segment/window_loss.hpp"

namespace kvstore {

class ObjectTable {
 public:
  struct Options {
    uint64_t first_chunk_bytes =
        0;                     // of the pool's first chunk of slot headers, which lies before the data area
    uint64_t data_offset = 0;  // in the map
    uint64_t capacity_bytes = 0;  // of the data area
    std::string eviction_policy = "adaptive";
    uint64_t pinned_bytes_max = 0;
    RetentionLimits retention;
    uint64_t owner_pinned_bytes_max = UINT64_MAX;  // of them, for one owner
    // What open batches of puts keep from eviction, each and all together.
    uint64_t batch_bytes_max = UINT64_MAX, batches_bytes_max = UINT64_MAX;
    Budget* held_bytes = nullptr;  // what readers may hold; outlives the table; null: anything
    // The pool is one that another process has left: see "taking over" below. Otherwise it is zeroed.
    bool kept = false;
    // Hears of each object that is about to go before anything in the pool says so; must not throw. Null: nobody.
    std::function<void(const JournalEntry&)> on_removal;
    // Whether the segment has an object elsewhere too, so that nobody needs to hear that it goes; must not throw. Null: none.
    std::function<bool(const Fingerprint&, const NamespaceId&)> stays;
  };
  // `base` is the map of the pool, and outlives the table.
  ObjectTable(uint8_t* base, const Options& options);

  // What readers do, under the locks of their own.
  ObjectShards& shards() { return shards_; }
  const RetiredNamespaces& retired() const { return namespaces_.retired(); }

  // ---- finding
  void prefetch(const Fingerprint& fp) const { shards_.prefetch(fp); }
  // The sealed slot of exactly this key, or kNoSlot.
  uint32_t find(const Fingerprint& fp, const Key& key) const { return shards_.find(fp, key); }
  // The sealed slot of this fingerprint, whatever its key.
  uint32_t occupant(const Fingerprint& fp) const { return shards_.occupant(fp); }
  const SlotHeader& header(uint32_t slot) const { return slots_.header(slot); }
  uint32_t wire_number(uint32_t slot) const { return slots_.wire_number(slot); }
  uint8_t* data(uint32_t slot) const { return base_ + records_[slot].offset; }
  uint64_t offset(uint32_t slot) const { return records_[slot].offset; }  // in the map
  uint32_t length(uint32_t slot) const { return records_[slot].length; }
  uint16_t text_bytes(uint32_t slot) const { return records_[slot].text_bytes; }
  const NamespaceTable& namespaces() const { return namespaces_; }
  PutBatches& batches() { return batches_; }

  // ---- writing: reserve -> seal | abandon
  enum class Short : uint8_t { kNothing, kBytes, kSlots };
  struct Reserved {
    uint32_t slot = kNoSlot;
    Short lacking = Short::kNothing;
  };
  // A WRITING slot with memory for the object and its text (which is copied in), or what it takes: an extent that is
  // long enough, or a slot where no extent is long enough for a chunk of them.
  Reserved reserve(const Key& key, uint32_t length, uint32_t depth, std::string_view text);
  // What the batch has brought or found here stays as long as the batch is open.
  // The batch keeps it from eviction, where it may keep that much more.
  void set_batch(uint32_t slot, uint32_t batch) noexcept;
  uint32_t batch(uint32_t slot) const { return records_[slot].batch; }
  // Makes the object findable; `seq` is the journal number that its ADD is going to have. The fingerprint must have no
  // occupant. `intent`: see Retention::came. Nothing: it can't be had (its header is damaged, or memory is short), and
  // the slot is given up.
  std::optional<JournalEntry> seal(uint32_t slot, const Fingerprint& fp, uint8_t digest_alg, uint32_t digest,
                                   uint64_t seq, wire::Intent intent = wire::Intent::kNormal) noexcept;
  void abandon(uint32_t slot) noexcept;
  // What is sealed from here on belongs to another request, and does not go on with the chain of the last one.
  void begin_seals() noexcept { chains_.begin_request(); }
  // The journal number of the object's ADD.
  uint64_t seq(uint32_t slot) const { return records_[slot].seq; }

  // ---- ranking
  // A reader has used the object, if it is still the one in that slot.
  void use(uint32_t slot, const Fingerprint& fp) noexcept;

  // ---- what writers want of findable objects when space runs short
  bool is_retained(uint32_t slot) const { return retention_.of(slot) == Keep::kRetained; }
  Keep wished(uint32_t slot) const { return retention_.of(slot); }
  uint64_t taken_bytes(uint32_t slot) const {
    return ExtentAllocator::rounded(records_[slot].stored_bytes());
  }
  // See Retention::keep, refuse and spare.
  bool keep(uint32_t slot, const wire::KeepWish& wish, uint64_t now_ms) noexcept;
  void refuse_retention(uint32_t slot) noexcept { retention_.refuse(kept_object(slot)); }
  void spare(uint32_t slot) noexcept { retention_.spare(kept_object(slot)); }
  // Ends some of the retentions whose time is over.
  const Retention& retention(uint64_t now_ms) noexcept;
  // The first findable object of `ns` in slots [first, end), or `end`.
  uint32_t next_of(const NamespaceId& ns, uint32_t first, uint32_t end) const;

  // ---- removing; `seq` is the journal number that the (first) REMOVE is going to have, and the header tells it
  // Takes a findable object away; the memory is free at once, or when its last reader leaves.
  JournalEntry remove(uint32_t slot, uint64_t seq) noexcept;
  // Frees what its last reader has left (ObjectShards::Left::kRemoved).
  void free_removed(uint32_t slot) noexcept;
  // Not findable, and its memory is never used again. Nothing when the slot was removed already.
  std::optional<JournalEntry> quarantine(uint32_t slot, uint64_t seq) noexcept;
  struct Evicted {
    uint64_t freed_bytes = 0;
    uint32_t looked_at = 0;
    uint32_t blocked = 0;    // of those: pinned or being read
    uint32_t spared = 0;     // of an open batch that is not the caller's
    bool exhausted = false;  // there was none to look at
  };
  // Removes objects, those of retired namespaces first, until `wanted_bytes` are freed or `steps_max` objects
  // were looked at; never pinned ones, ones being read, nor those of open batches. `own_batch`: the caller's, or 0.
  Evicted evict(uint64_t wanted_bytes, uint32_t steps_max, uint64_t now_ms, uint32_t own_batch, uint64_t seq,
                std::vector<JournalEntry>& removed) noexcept;

  // ---- quotas
  NamespaceQuotas& quotas() { return quotas_; }
  const NamespaceQuotas& quotas() const { return quotas_; }
  // Removes objects of the group, the longest unused first, until it has room for `coming_bytes` within its limit,
  // `steps_max` objects were looked at, or none was found that may go: pinned ones, ones being read and those of open
  // batches stay. `own_batch`, `seq`: see evict.
  Evicted evict_over_quota(NamespaceQuotas::Group& group, uint64_t coming_bytes, uint32_t steps_max,
                           uint64_t now_ms, uint32_t own_batch, uint64_t seq,
                           std::vector<JournalEntry>& removed) noexcept;

  // ---- windows: one range of addresses made free, where no extent is long enough
  struct Window {
    uint64_t begin = 0, end = 0;  // in the data area
    uint64_t cleared = 0;         // up to here it belongs to whoever clears it
  };
  // The search for the range of `size_bytes` that costs the least, a bounded piece a call.
  struct WindowSearch {
    uint64_t size_bytes = 0;
    uint64_t regions_left = UINT64_MAX;  // UINT64_MAX: it has not begun
    uint64_t region = 0;
    uint64_t begin = 0;  // of the window that is being looked at
    WindowLoss loss;     // if it is taken
    uint64_t lost_bytes = 0;
    uint32_t looked_at = 0;
    uint32_t blocked = 0;  // of those: pinned or being read
    struct Element {
      uint64_t offset, end;
      WindowLoss::Object object;  // that is lost with it
      bool may_go;
    };
    std::vector<Element> elements;  // in the window, and behind it as far as was looked
    size_t first = 0, next = 0;  // of the elements: the first in the window; the first that is not in it yet
    std::optional<Window> best;
    WindowLoss::Sum best_loss;
    size_t best_elements = 0;
  };
  // True: it is over, and `best` is set if there is a window in which everything may go.
  bool search_window(WindowSearch& search, uint64_t now_ms);
  enum class Cleared : uint8_t { kMore, kDone, kLost };
  // Removes what lies in the next region of the window, and keeps what gets free from everybody else. kDone: the
  // window is one free extent. kLost: something in it may not go any more; what was free is free again.
  Cleared clear_window(Window& window, uint64_t now_ms, uint64_t seq,
                       std::vector<JournalEntry>& removed) noexcept;
  // Gives back what was cleared.
  void give_up(Window& window) noexcept;
  uint64_t chunk_bytes() const { return chunk_bytes_; }

  // Where many slots lie free: looks at one chunk of them, and where few and small objects are all that keeps it removes
  // those, so that it is given back.
  void drain_chunk(uint64_t now_ms, uint64_t seq, std::vector<JournalEntry>& removed) noexcept;

  void retire(const NamespaceId& ns) { namespaces_.retire(ns); }
  void set_current(const std::vector<NamespaceId>& current, const std::vector<NamespaceId>& known) {
    namespaces_.set_current(current, known);
  }

  // ---- taking over the objects of a pool that was kept, before anything else
  // Each chunk of the pool behind the first, in the order of their links. False: it is none that can be used, and the
  // chunks behind it are lost with it.
  bool adopt_next_chunk();
  // Slots of all chunks that are there: those of chunk c are slot_at(c, 1) .. slot_at(c, places - 1).
  const SlotTable& slot_table() const { return slots_; }
  // Takes a sealed object over as it lies, whose bytes were compared with their digest, in the order in which they are to be
  // ranked. `seq`: the journal number of its ADD. False: its header contradicts itself or what was taken over before; the slot
  // is as good as free.
  bool adopt(uint32_t slot, const Fingerprint& fp, uint64_t seq, Keep keep = Keep::kNormal);
  // Whatever slots were not adopted are free from now on.
  void end_adoption();

  // ---- totals
  uint64_t capacity_bytes() const { return extents_.capacity_bytes(); }
  uint64_t used_bytes() const { return extents_.used_bytes(); }
  uint64_t free_bytes() const { return capacity_bytes() - used_bytes(); }
  uint64_t largest_free_bytes() const { return extents_.largest_free_bytes(); }
  uint32_t object_count() const { return ranked_count_; }
  uint32_t writing_count() const { return writing_count_; }
  uint32_t removed_held_count() const { return removed_held_count_; }
  uint32_t slot_count() const { return slot_count_; }
  uint32_t slots_free() const { return slots_free_; }
  uint32_t quarantined_count() const { return quarantined_count_; }
  // Quarantined slots whose header was not what this table had written.
  uint32_t damaged_count() const { return damaged_count_; }
  // Calls that broke this table's rules, and were ignored.
  uint64_t misuse_count() const { return misuse_count_ + shards_.misuse_count(); }
  // Above every slot that there ever was.
  uint32_t slots_end() const { return slot_at(slots_.chunks_end(), 0); }
  // Appends the sealed objects of slots [first, end) whose namespaces are current, as ADD entries in slot order, until
  // `entries` has `entries_max`. Returns the slot to go on from.
  uint32_t list(uint32_t first, uint32_t end, size_t entries_max, std::vector<JournalEntry>& entries) const;
  // An object and its place in the order of how hot objects are: the lower, the hotter. What is retained comes before the rest, what is
  // demoted behind it, and within these what was used last comes first.
  struct Ranked {
    uint64_t rank;
    uint32_t slot;
    JournalEntry entry;
  };
  // The time of now, which list_ranked counts back from: what is used after it is all alike.
  uint32_t uses() const { return uses_; }
  // Appends all objects of slots [first, end) whose namespaces are current, in slot order, as ADD entries.
  void list_ranked(uint32_t first, uint32_t end, uint32_t since, std::vector<Ranked>& out) const;

 private:
  struct FreeSlots {
    uint32_t first = 0;  // place of the first free one; 0: none
    uint32_t count = 0;
  };
  bool is_findable(uint32_t slot) const {
    return records_[slot].state == SlotState::kSealed && !shards_.is_removed(slot);
  }
  // Does nothing to what is not findable.
  void set_keep(uint32_t slot, Keep keep) noexcept;
  Retention::Object kept_object(uint32_t slot) const {
    return {slot, records_[slot].ns, shards_.fingerprint(slot).lo, taken_bytes(slot)};
  }
  bool is_as_written(uint32_t slot) const;  // what the table keeps of a header is what the header says
  bool keeps_rule(bool kept) noexcept;      // counts it when not
  // May go for the sake of others: in no open batch. Idle ones only.
  bool is_spared(uint32_t slot) const { return batches_.keeps(records_[slot].batch); }
  // Its REMOVE, which is told before the object goes; or kStays, which is not.
  JournalEntry tell_removal(uint32_t slot) noexcept;
  JournalEntry take_out(uint32_t slot, bool idle, uint64_t seq) noexcept;
  void free_memory(uint32_t slot) noexcept;
  void condemn(uint32_t slot) noexcept;
  void free_extent(uint64_t offset, uint64_t size_bytes) noexcept;
  WindowLoss::Object loss_of(uint32_t slot) const;
  uint32_t longest_unused(NamespaceQuotas::Group& group) const noexcept;
  std::vector<WindowSearch::Element> elements_of(uint64_t region, WindowSearch& search,
                                                 uint64_t now_ms) const;

  // chunks
  void track_chunk(uint32_t chunk);
  bool grow();
  uint32_t take_slot() noexcept;
  void give_slot(uint32_t slot) noexcept;
  void give_chunk_back(uint32_t chunk) noexcept;

  uint8_t* base_;
  const uint64_t data_offset_;
  const uint64_t map_bytes_;
  const uint64_t chunk_bytes_;
  const std::function<void(const JournalEntry&)> on_removal_;
  const std::function<bool(const Fingerprint&, const NamespaceId&)> stays_;
  SlotTable slots_;
  BySlot<ObjectRecord> records_;
  ObjectShards shards_;
  ExtentAllocator extents_;
  AddressMap addresses_;  // of what is not free: written, sealed, quarantined; of offsets in the data area
  std::set<std::pair<uint64_t, uint64_t>> chunk_extents_;  // (offset in the data area, bytes)
  NamespaceTable namespaces_;
  NamespaceQuotas quotas_;
  ChainLinks chains_;
  PutBatches batches_;
  std::unique_ptr<EvictionPolicy> policy_;
  Retention retention_;
  std::vector<FreeSlots> free_slots_;          // by chunk
  std::set<uint32_t> chunks_with_free_slots_;  // the lowest is used first, so that the upper ones get free
  uint32_t drain_hand_ = 0;                    // the chunk that was looked at last
  uint64_t window_hand_ = 0;                   // the region where the next search begins
  uint32_t slot_count_ = 0;
  uint32_t slots_free_ = 0;
  uint32_t ranked_count_ = 0;
  uint32_t writing_count_ = 0;
  uint32_t removed_held_count_ = 0;
  uint32_t uses_ = 0;  // objects that came or were used: the time of ObjectRecord::used_at
  uint32_t quarantined_count_ = 0;
  uint32_t damaged_count_ = 0;
  uint64_t misuse_count_ = 0;
};

}  // namespace kvstore
