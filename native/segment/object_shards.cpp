#include "segment/object_shards.hpp"

#include "segment/extent_allocator.hpp"

namespace kvstore {

ObjectShards::ObjectShards(const SlotTable& slots, const BySlot<ObjectRecord>& records, uint32_t chunks_max,
                           uint64_t pinned_bytes_max, uint64_t owner_pinned_bytes_max, Budget* held_bytes)
    : slots_(slots),
      records_(records),
      fingerprints_(chunks_max),
      readers_(chunks_max),
      budget_(pinned_bytes_max, owner_pinned_bytes_max),
      held_bytes_(held_bytes) {
  for (uint32_t i = 0; i < kShards; ++i) shards_.push_back(std::make_unique<Shard>(fingerprints_, budget_));
}

void ObjectShards::add_chunk(uint32_t chunk, uint32_t places) {
  fingerprints_.add(chunk, places);
  readers_.add(chunk, places);
}

void ObjectShards::remove_chunk(uint32_t chunk) noexcept {
  fingerprints_.remove(chunk);
  readers_.remove(chunk);
}

void ObjectShards::prefetch(const Fingerprint& fp) const NO_THREAD_SAFETY_ANALYSIS {  // a hint needs no lock
  const Place at = place(fp);
  shards_[at.shard]->index.prefetch(at.hash);
}

uint32_t ObjectShards::find_in(const Shard& shard, uint32_t hash, const Fingerprint& fp,
                               const Key& key) const {
  const uint32_t slot = shard.index.find(fp, hash);
  return slot != kNoSlot && slots_.header(slot).has_key(key) ? slot : kNoSlot;
}

HeldObject ObjectShards::hold(const Fingerprint& fp, const Key& key, uint32_t expected_length, bool anyway,
                              uint64_t has_bytes) {
  const Place at = place(fp);
  Shard& shard = *shards_[at.shard];
  HeldObject held;
  const MutexLock lock(shard.mutex);
  const uint32_t slot = find_in(shard, at.hash, fp, key);
  if (slot == kNoSlot) return held;
  const ObjectRecord& record = records_[slot];
  held.found = true;
  held.length = record.length;
  if (expected_length != 0 && expected_length != record.length) return held;
  if (held_bytes_ != nullptr && readers_[slot].readers == 0) {
    const uint64_t bytes = ExtentAllocator::rounded(record.stored_bytes());
    if (anyway)
      held_bytes_->take_anyway(bytes);
    else if (!held_bytes_->take(bytes, has_bytes))
      held.refused = true;
    if (held.refused) return held;
  }
  const SlotHeader& h = slots_.header(slot);
  held.slot = slot;
  held.wire_slot = slots_.wire_number(slot);
  held.digest = h.digest;
  held.digest_alg = h.digest_alg;
  held.text_bytes = record.text_bytes;
  held.depth = h.depth;
  held.offset = record.offset;
  held.generation = h.generation.load(std::memory_order_relaxed);
  ++readers_[slot].readers;
  return held;
}

ObjectShards::Left ObjectShards::unhold(uint32_t slot) noexcept {
  Shard& shard = *shards_[place(fingerprints_[slot]).shard];
  const MutexLock lock(shard.mutex);
  ReaderRecord& record = readers_[slot];
  if (record.readers == 0) {
    misuse_count_.fetch_add(1, std::memory_order_relaxed);
    return Left::kHeldByOthers;
  }
  if (--record.readers > 0) return Left::kHeldByOthers;
  if (held_bytes_ != nullptr) held_bytes_->give_back(ExtentAllocator::rounded(records_[slot].stored_bytes()));
  return record.removed ? Left::kRemoved : Left::kIdle;
}

ObjectShards::Pinned ObjectShards::pin(const Fingerprint& fp, const Key& key, uint64_t now_ms,
                                       uint32_t pin_ms, uint32_t owner) {
  const Place at = place(fp);
  Shard& shard = *shards_[at.shard];
  const MutexLock lock(shard.mutex);
  const uint32_t slot = find_in(shard, at.hash, fp, key);
  if (slot == kNoSlot) return Pinned::kMiss;
  if (pin_ms == 0) return Pinned::kThere;
  const uint64_t bytes = ExtentAllocator::rounded(records_[slot].stored_bytes());
  return shard.pins.pin(slot, bytes, now_ms, pin_ms, owner) ? Pinned::kPromised : Pinned::kThere;
}

void ObjectShards::expire_pins(uint64_t now_ms) {
  uint64_t before = pins_expired_ms_.load(std::memory_order_relaxed);
  if (now_ms < before + PinTable::kTickMs ||
      !pins_expired_ms_.compare_exchange_strong(before, now_ms, std::memory_order_relaxed))
    return;  // nothing new, or somebody else is at it
  if (budget_.pinned_bytes() == 0) return;
  for (const auto& shard : shards_) {
    const MutexLock lock(shard->mutex);
    shard->pins.expire(now_ms);
  }
}

uint32_t ObjectShards::object_count() const {
  uint32_t count = 0;
  for (const auto& shard : shards_) {
    const MutexLock lock(shard->mutex);
    count += shard->index.size();
  }
  return count;
}

uint32_t ObjectShards::find(const Fingerprint& fp, const Key& key) const {
  const Place at = place(fp);
  const Shard& shard = *shards_[at.shard];
  const MutexLock lock(shard.mutex);
  return find_in(shard, at.hash, fp, key);
}

uint32_t ObjectShards::occupant(const Fingerprint& fp) const {
  const Place at = place(fp);
  const Shard& shard = *shards_[at.shard];
  const MutexLock lock(shard.mutex);
  return shard.index.find(fp, at.hash);
}

void ObjectShards::insert(uint32_t slot, const Fingerprint& fp) {
  const Place at = place(fp);
  Shard& shard = *shards_[at.shard];
  const MutexLock lock(shard.mutex);
  shard.index.reserve_one();
  fingerprints_[slot] = fp;
  readers_[slot] = ReaderRecord{};
  shard.index.insert(slot, at.hash);
}

bool ObjectShards::unlist(Shard& shard, uint32_t hash, uint32_t slot) noexcept {
  shard.index.erase(fingerprints_[slot], hash);
  shard.pins.forget(slot);
  ReaderRecord& record = readers_[slot];
  record.removed = record.readers > 0;
  return !record.removed;
}

bool ObjectShards::take_out(uint32_t slot) noexcept {
  const Place at = place(fingerprints_[slot]);
  Shard& shard = *shards_[at.shard];
  const MutexLock lock(shard.mutex);
  return unlist(shard, at.hash, slot);
}

bool ObjectShards::take_out_idle(uint32_t slot, uint64_t now_ms) noexcept {
  const Place at = place(fingerprints_[slot]);
  Shard& shard = *shards_[at.shard];
  const MutexLock lock(shard.mutex);
  if (readers_[slot].readers > 0 || shard.pins.is_pinned(slot, now_ms)) return false;
  return unlist(shard, at.hash, slot);
}

bool ObjectShards::is_idle(uint32_t slot, uint64_t now_ms) const noexcept {
  const Shard& shard = *shards_[place(fingerprints_[slot]).shard];
  const MutexLock lock(shard.mutex);
  return readers_[slot].readers == 0 && !shard.pins.is_pinned(slot, now_ms);
}

}  // namespace kvstore
