// fingerprint -> first location, as a hash table that grows a little at a time.
//
// Extendible hashing: the upper bits of a tag (32 bits of a hash that nobody can aim at) name a part, a small open-addressing
// table of fixed size. A part that is three quarters full is split in two, and the directory of parts is
// doubled when that takes one more bit of the tag. So the longest step of growing is one part's slots,
// however many entries there are, nothing is ever looked up in two places, and no second table exists beside
// the first: right after all parts have split the table takes 21.4 bytes a fingerprint, and never more.
//
// Slots are removed by shifting back, so churn leaves no tombstones and probe lengths depend on the load
// alone. Parts are not merged again: what a table has needed once it keeps. Not thread-safe: the owner locks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "master/location_store.hpp"

namespace kvstore {

class FingerprintTable {
 public:
  static constexpr uint32_t kPartBits = 12;
  static constexpr uint32_t kPartSlots = 1u << kPartBits;
  static constexpr uint32_t kPartUsedMax = kPartSlots / 4 * 3;

  struct Slot {
    uint32_t tag = 0;
    uint32_t head = kNoLocation;  // kNoLocation: empty
    bool empty() const { return head == kNoLocation; }
  };

  FingerprintTable() { add_part(0, 0), directory_.push_back(parts_.back().get()); }
  // The slot of f, or the empty one where it would go. Good until the next fill, erase or reserve.
  Slot& find(uint32_t tag, const Fingerprint& f, const LocationStore& locations) {
    return const_cast<Slot&>(static_cast<const FingerprintTable*>(this)->find(tag, f, locations));
  }
  const Slot& find(uint32_t tag, const Fingerprint& f, const LocationStore& locations) const;
  // After reserve() for this tag.
  void fill(Slot& slot, uint32_t tag, uint32_t head);
  void erase(Slot& slot);

  // Fingerprints with these tags can be filled in without fail. std::bad_alloc, and then all is found as
  // before.
  void reserve(const std::vector<uint32_t>& tags);

  void prefetch(uint32_t tag) const { __builtin_prefetch(&part_of(tag).slots[tag & (kPartSlots - 1)]); }
  // What will most likely be looked at when this tag is found, or kNoLocation.
  uint32_t likely_head(uint32_t tag) const { return part_of(tag).slots[tag & (kPartSlots - 1)].head; }

  uint64_t size() const { return size_; }
  uint64_t memory_bytes() const {
    return parts_.size() * sizeof(Part) + directory_.capacity() * sizeof(Part*);
  }
  // Slots that growing has moved so far.
  uint64_t moved_slots() const { return moved_slots_; }

 private:
  static constexpr uint32_t kDepthMax = 32 - kPartBits;  // the bits of a tag that name parts

  struct alignas(64) Part {
    Slot slots[kPartSlots];  // home of a tag: its lower bits
    uint32_t used = 0;
    uint32_t depth;      // upper bits of the tag that all its fingerprints have in common
    uint32_t first_tag;  // the lowest tag that belongs here
    uint32_t wanted = 0;
    Part(uint32_t common_bits, uint32_t lowest) : depth(common_bits), first_tag(lowest) {}
  };

  size_t directory_index(uint32_t tag) const { return static_cast<size_t>(uint64_t{tag} << depth_ >> 32); }
  Part& part_of(uint32_t tag) { return *directory_[directory_index(tag)]; }
  const Part& part_of(uint32_t tag) const { return *directory_[directory_index(tag)]; }
  Part& add_part(uint32_t depth, uint32_t first_tag);
  void split(Part& part);
  static void insert(Part& part, const Slot& slot);

  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<Part*> directory_;  // 2^depth_
  uint32_t depth_ = 0;
  uint64_t size_ = 0;
  uint64_t moved_slots_ = 0;
};

}  // namespace kvstore
