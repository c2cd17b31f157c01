// fingerprint -> slot: open addressing with linear probing. A bucket keeps 32 bits of a keyed hash beside the slot: its
// upper bits say where the bucket belongs, so that growing copies buckets in order and looks nowhere else, and all of
// them together make a probe rarely look at a fingerprint. Not thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "protocol/keys.hpp"
#include "segment/by_slot.hpp"

namespace kvstore {

class SlotIndex {
 public:
  // `fingerprints` says which one a slot has that is in the index, and outlives it.
  explicit SlotIndex(const BySlot<Fingerprint>& fingerprints);

  // `hash` is that of the fingerprint, the same in each call. A hint: any thread may give it at any time.
  void prefetch(uint32_t hash) const {
    const uintptr_t at = hint_.load(std::memory_order_relaxed);
    __builtin_prefetch(reinterpret_cast<const void*>(
        at + (hash >> hint_shift_.load(std::memory_order_relaxed)) * sizeof(Bucket)));
  }
  // The slot of this fingerprint, or kNoSlot.
  uint32_t find(const Fingerprint& fp, uint32_t hash) const { return buckets_[bucket_of(fp, hash)].slot; }
  // Makes room for one more. Throws std::bad_alloc and changes nothing.
  void reserve_one();
  // Neither the slot nor its fingerprint may be in the index: std::logic_error where the fingerprint is. Room must
  // have been made.
  void insert(uint32_t slot, uint32_t hash);
  // False when the fingerprint is not there.
  bool erase(const Fingerprint& fp, uint32_t hash) noexcept;

  uint32_t size() const { return size_; }

 private:
  struct Bucket {
    uint32_t hash = 0;
    uint32_t slot = kNoSlot;
  };
  static constexpr unsigned kBitsMin = 4, kBitsMax = 30;
  size_t bucket_count() const { return size_t{1} << bits_; }
  size_t mask() const { return bucket_count() - 1; }
  size_t home(uint32_t hash) const { return hash >> (32 - bits_); }
  // The bucket that holds it, or the empty one where its probe ends.
  size_t bucket_of(const Fingerprint& fp, uint32_t hash) const {
    size_t at = home(hash);
    while (buckets_[at].slot != kNoSlot &&
           !(buckets_[at].hash == hash && (*fingerprints_)[buckets_[at].slot] == fp))
      at = (at + 1) & mask();
    return at;
  }
  void resize(unsigned bits);
  void give_hint();

  const BySlot<Fingerprint>* fingerprints_;
  unsigned bits_ = kBitsMin;
  std::unique_ptr<Bucket[]> buckets_;
  uint32_t size_ = 0;
  std::atomic<uintptr_t> hint_{0};
  std::atomic<unsigned> hint_shift_{32 - kBitsMin};
};

}  // namespace kvstore
