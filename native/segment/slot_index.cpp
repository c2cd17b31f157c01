#include "segment/slot_index.hpp"

#include <stdexcept>

namespace kvstore {

SlotIndex::SlotIndex(const BySlot<Fingerprint>& fingerprints)
    : fingerprints_(&fingerprints), buckets_(std::make_unique<Bucket[]>(size_t{1} << kBitsMin)) {
  give_hint();
}

void SlotIndex::give_hint() {
  hint_.store(reinterpret_cast<uintptr_t>(buckets_.get()), std::memory_order_relaxed);
  hint_shift_.store(32 - bits_, std::memory_order_relaxed);
}

void SlotIndex::resize(unsigned bits) {
  auto old = std::make_unique<Bucket[]>(size_t{1} << bits);
  old.swap(buckets_);
  const size_t count = bucket_count();
  bits_ = bits;
  // From behind an empty bucket on, so that whatever a probe has carried over the end follows its own.
  size_t first = 0;
  while (old[first].slot != kNoSlot) ++first;
  for (size_t i = 0; i < count; ++i) {
    const Bucket& bucket = old[(first + i) & (count - 1)];
    if (bucket.slot == kNoSlot) continue;
    size_t at = home(bucket.hash);
    while (buckets_[at].slot != kNoSlot) at = (at + 1) & mask();
    buckets_[at] = bucket;
  }
  give_hint();
}

void SlotIndex::reserve_one() {
  if (size_ + 1 > bucket_count() / 4 * 3) {  // at most three quarters full: short probes
    if (bits_ == kBitsMax) throw std::bad_alloc();
    resize(bits_ + 1);
  }
}

void SlotIndex::insert(uint32_t slot, uint32_t hash) {
  const size_t at = bucket_of((*fingerprints_)[slot], hash);
  if (buckets_[at].slot != kNoSlot) throw std::logic_error("the fingerprint is in the slot index already");
  buckets_[at] = {hash, slot};
  ++size_;
}

bool SlotIndex::erase(const Fingerprint& fp, uint32_t hash) noexcept {
  size_t hole = bucket_of(fp, hash);
  if (buckets_[hole].slot == kNoSlot) return false;
  // Shift back what a probe could no longer reach over the hole; no tombstones, so churn never degrades
  // lookups.
  for (size_t at = (hole + 1) & mask(); buckets_[at].slot != kNoSlot; at = (at + 1) & mask()) {
    const size_t wanted = home(buckets_[at].hash);
    if (((at - wanted) & mask()) >= ((at - hole) & mask())) {
      buckets_[hole] = buckets_[at];
      hole = at;
    }
  }
  buckets_[hole] = Bucket{};
  --size_;
  if (bits_ > kBitsMin && size_ < bucket_count() / 8) {
    try {
      resize(bits_ - 1);
    } catch (const std::exception&) {  // it stays as large as it is
    }
  }
  return true;
}

}  // namespace kvstore
