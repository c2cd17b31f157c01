// fingerprint -> slot: open addressing over a table sized once for all slots, so that it never grows or
// rehashes. A bucket keeps 32 bits of a keyed hash beside the slot, so that a probe rarely looks elsewhere, and
// nobody who chooses page keys can make many of them fall together. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/keyed_hash.hpp"
#include "protocol/keys.hpp"
#include "segment/slot_table.hpp"

namespace kvstore {

class SlotIndex {
 public:
  explicit SlotIndex(uint32_t slot_count);

  void prefetch(const Fingerprint& fp) const { __builtin_prefetch(&buckets_[home(fp)]); }
  // The slot of this fingerprint, or kNoSlot.
  uint32_t find(const Fingerprint& fp) const;
  // `slot` must be in [0, slot_count), not in the index, and neither may the fingerprint be: std::logic_error
  // otherwise.
  void insert(const Fingerprint& fp, uint32_t slot);
  // False when the fingerprint is not there.
  bool erase(const Fingerprint& fp);

  const Fingerprint& fingerprint(uint32_t slot) const { return fingerprints_[slot]; }
  uint32_t size() const { return size_; }

 private:
  struct Bucket {
    uint32_t tag = 0;
    uint32_t slot = kNoSlot;
  };
  size_t home(const Fingerprint& fp) const { return static_cast<size_t>(hash_(fp)) & mask_; }
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  // The bucket that holds it, or the empty one where its probe ends.
  size_t bucket_of(const Fingerprint& fp, uint64_t hash) const;

  const KeyedHash hash_;
  std::vector<Bucket> buckets_;
  std::vector<Fingerprint> fingerprints_;  // by slot
  size_t mask_;
  uint32_t size_ = 0;
};

}  // namespace kvstore
