#include "segment/slot_index.hpp"

#include <stdexcept>

namespace kvstore {
namespace {

size_t bucket_count_for(uint32_t slot_count) {
  size_t n = 16;
  while (n < size_t{slot_count} * 2) n *= 2;  // at most half full: short probes
  return n;
}

}  // namespace

SlotIndex::SlotIndex(uint32_t slot_count)
    : buckets_(bucket_count_for(slot_count)), fingerprints_(slot_count), mask_(buckets_.size() - 1) {}

size_t SlotIndex::bucket_of(const Fingerprint& fp, uint64_t hash) const {
  const uint32_t tag = tag_of(hash);
  size_t at = static_cast<size_t>(hash) & mask_;
  while (buckets_[at].slot != kNoSlot && !(buckets_[at].tag == tag && fingerprints_[buckets_[at].slot] == fp))
    at = (at + 1) & mask_;
  return at;
}

uint32_t SlotIndex::find(const Fingerprint& fp) const { return buckets_[bucket_of(fp, hash_(fp))].slot; }

void SlotIndex::insert(const Fingerprint& fp, uint32_t slot) {
  const uint64_t hash = hash_(fp);
  const size_t at = bucket_of(fp, hash);
  if (buckets_[at].slot != kNoSlot) throw std::logic_error("the fingerprint is in the slot index already");
  if (size_ >= fingerprints_.size()) throw std::logic_error("the slot index is full");
  fingerprints_[slot] = fp;
  buckets_[at] = {tag_of(hash), slot};
  ++size_;
}

bool SlotIndex::erase(const Fingerprint& fp) {
  size_t hole = bucket_of(fp, hash_(fp));
  if (buckets_[hole].slot == kNoSlot) return false;
  // Shift back what a probe could no longer reach over the hole; no tombstones, so churn never degrades
  // lookups.
  for (size_t at = (hole + 1) & mask_; buckets_[at].slot != kNoSlot; at = (at + 1) & mask_) {
    const size_t wanted = home(fingerprints_[buckets_[at].slot]);
    if (((at - wanted) & mask_) >= ((at - hole) & mask_)) {
      buckets_[hole] = buckets_[at];
      hole = at;
    }
  }
  buckets_[hole] = Bucket{};
  --size_;
  return true;
}

}  // namespace kvstore
