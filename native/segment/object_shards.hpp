// The side of the objects that readers see: index, readers and pins, in shards by fingerprint. A reader takes the
// mutex of one shard at a time and no other, so that readers on several cores don't wait for each other.
//
// Writers hold the store's main mutex for every call that adds or takes objects away, and take the shard's inside of
// it: the order of locks is main, then shard. So whoever holds the main mutex sees an index that does not change. What
// becomes of a slot's memory is not decided here.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "protocol/keyed_hash.hpp"
#include "segment/budget.hpp"
#include "segment/object_record.hpp"
#include "segment/pin_table.hpp"
#include "segment/slot_index.hpp"
#include "segment/slot_table.hpp"

namespace kvstore {

// What a reader learns of an object that it holds now.
struct HeldObject {
  bool found = false;
  bool refused = false;     // it is there, but readers hold as much as they may
  uint32_t slot = kNoSlot;  // kNoSlot: it is not there, its length is not the expected one, or it was refused
  uint32_t wire_slot = kNoSlot;
  uint32_t length = 0;
  uint32_t digest = 0;
  uint8_t digest_alg = 0;
  uint16_t text_bytes = 0;  // behind the object's
  uint32_t depth = 0;
  uint64_t offset = 0;  // in the map
  uint64_t generation = 0;
};

class ObjectShards {
 public:
  static constexpr uint32_t kShards = 128;

  // `slots` and `records` are the object table's, and outlive this.
  ObjectShards(const SlotTable& slots, const BySlot<ObjectRecord>& records, uint32_t chunks_max,
               uint64_t pinned_bytes_max, uint64_t owner_pinned_bytes_max = UINT64_MAX,
               Budget* held_bytes = nullptr);

  // ---- readers: any thread, no lock held
  void prefetch(const Fingerprint& fp) const;
  // Holds the sealed object of exactly this key; its bytes stay until unhold. An `expected_length` that is neither 0
  // nor the object's holds nothing.
  // Beyond the budget of what readers hold only what is held already is held; or, `anyway`, everything. `has_bytes`:
  // what the same reader holds already.
  HeldObject hold(const Fingerprint& fp, const Key& key, uint32_t expected_length, bool anyway = false,
                  uint64_t has_bytes = 0);
  enum class Left : uint8_t { kHeldByOthers, kIdle, kRemoved };
  // kRemoved: the last reader of an object that was removed has left, and its memory is to be freed under the main
  // mutex, by the caller. Misuse is counted and answered with kHeldByOthers.
  Left unhold(uint32_t slot) noexcept;
  enum class Pinned : uint8_t { kMiss, kThere, kPromised };
  // Pins the object where the budget of pinned bytes and the owner's share of it allow; pin_ms 0 only looks.
  Pinned pin(const Fingerprint& fp, const Key& key, uint64_t now_ms, uint32_t pin_ms,
             uint32_t owner = PinBudget::kNoOwner);
  // Takes back the bytes of pins that have run out.
  void expire_pins(uint64_t now_ms);
  uint64_t pinned_bytes() const { return budget_.pinned_bytes(); }
  uint32_t object_count() const;
  uint64_t misuse_count() const { return misuse_count_.load(std::memory_order_relaxed); }

  // ---- under the main mutex
  void add_chunk(uint32_t chunk, uint32_t places);
  void remove_chunk(uint32_t chunk) noexcept;
  uint32_t find(const Fingerprint& fp, const Key& key) const;
  uint32_t occupant(const Fingerprint& fp) const;
  const Fingerprint& fingerprint(uint32_t slot) const { return fingerprints_[slot]; }
  bool is_removed(uint32_t slot) const { return readers_[slot].removed; }
  // From now on it is found. The fingerprint has no occupant. Throws std::bad_alloc and changes nothing.
  void insert(uint32_t slot, const Fingerprint& fp);
  // Not findable any more. True: nobody reads it. False: it waits for its readers to leave.
  bool take_out(uint32_t slot) noexcept;
  // The same where nobody reads it and no pin promises it; false, and nothing is changed, otherwise.
  bool take_out_idle(uint32_t slot, uint64_t now_ms) noexcept;
  bool is_idle(uint32_t slot, uint64_t now_ms) const noexcept;

 private:
  struct Place {
    uint32_t shard;
    uint32_t hash;
  };
  struct Shard {
    Shard(const BySlot<Fingerprint>& fingerprints, PinBudget& budget) : index(fingerprints), pins(budget) {}
    mutable Mutex mutex;
    SlotIndex index GUARDED_BY(mutex);
    PinTable pins GUARDED_BY(mutex);
  };
  Place place(const Fingerprint& fp) const {
    const uint64_t hash = hash_(fp);
    return {static_cast<uint32_t>(hash) % kShards, static_cast<uint32_t>(hash >> 32)};
  }
  uint32_t find_in(const Shard& shard, uint32_t hash, const Fingerprint& fp, const Key& key) const
      REQUIRES(shard.mutex);
  bool unlist(Shard& shard, uint32_t hash, uint32_t slot) noexcept REQUIRES(shard.mutex);

  const SlotTable& slots_;
  const BySlot<ObjectRecord>& records_;
  const KeyedHash hash_;
  BySlot<Fingerprint> fingerprints_;
  BySlot<ReaderRecord> readers_;
  PinBudget budget_;
  Budget* const held_bytes_;  // each object counted once; null: no limit
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<uint64_t> pins_expired_ms_{0};
  std::atomic<uint64_t> misuse_count_{0};
};

}  // namespace kvstore
