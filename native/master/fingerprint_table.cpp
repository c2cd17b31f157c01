#include "master/fingerprint_table.hpp"

#include <algorithm>
#include <new>

namespace kvstore {
namespace {

constexpr uint32_t kHomeMask = FingerprintTable::kPartSlots - 1;

}  // namespace

const FingerprintTable::Slot& FingerprintTable::find(uint32_t tag, const Fingerprint& f,
                                                     const LocationStore& locations) const {
  const Slot* slots = part_of(tag).slots;
  uint32_t i = tag & kHomeMask;
  while (!slots[i].empty() && !(slots[i].tag == tag && locations[slots[i].head].fingerprint == f))
    i = (i + 1) & kHomeMask;
  return slots[i];
}

void FingerprintTable::fill(Slot& slot, uint32_t tag, uint32_t head) {
  if (slot.empty()) {
    Part& part = part_of(tag);
    assert(part.used < kPartSlots - 1 && "reserve() came first");
    ++part.used;
    ++size_;
  }
  slot = Slot{tag, head};
}

void FingerprintTable::erase(Slot& slot) {
  Part& part = part_of(slot.tag);
  Slot* slots = part.slots;
  auto hole = static_cast<uint32_t>(&slot - slots);
  for (uint32_t i = (hole + 1) & kHomeMask; !slots[i].empty(); i = (i + 1) & kHomeMask) {
    const uint32_t home = slots[i].tag & kHomeMask;
    // One may move back to the hole unless its home lies after it.
    if (((i - home) & kHomeMask) >= ((i - hole) & kHomeMask)) {
      slots[hole] = slots[i];
      hole = i;
    }
  }
  slots[hole] = Slot{};
  --part.used;
  --size_;
}

void FingerprintTable::reserve(const std::vector<uint32_t>& tags) {
  std::vector<Part*> full;
  do {
    full.clear();
    for (const uint32_t tag : tags) ++part_of(tag).wanted;
    for (const uint32_t tag : tags) {
      Part& part = part_of(tag);
      const uint32_t needed = part.used + part.wanted;
      // A part that all bits have been spent on takes what fits into it beside the empty slot that ends a probe.
      const bool whole = part.depth == kDepthMax;
      if (part.wanted > 0 && needed > (whole ? kPartSlots - 1 : kPartUsedMax)) full.push_back(&part);
      part.wanted = 0;
    }
    for (Part* part : full) {
      if (part->depth == kDepthMax) throw std::bad_alloc();
      split(*part);
    }
  } while (!full.empty());
}

FingerprintTable::Part& FingerprintTable::add_part(uint32_t depth, uint32_t first_tag) {
  parts_.push_back(std::make_unique<Part>(depth, first_tag));
  return *parts_.back();
}

void FingerprintTable::split(Part& part) {
  if (part.depth == depth_) {
    std::vector<Part*> doubled(directory_.size() * 2);
    for (size_t i = 0; i < doubled.size(); ++i) doubled[i] = directory_[i / 2];
    directory_.swap(doubled);
    ++depth_;
  }
  const uint32_t bit = 1u << (31 - part.depth);
  Part& upper = add_part(part.depth + 1, part.first_tag | bit);
  // Nothing fails from here on.
  ++part.depth;
  const size_t first = directory_index(upper.first_tag);
  std::fill_n(directory_.begin() + static_cast<ptrdiff_t>(first), size_t{1} << (depth_ - part.depth), &upper);
  Slot all[kPartSlots];
  std::copy(std::begin(part.slots), std::end(part.slots), all);
  std::fill(std::begin(part.slots), std::end(part.slots), Slot{});
  part.used = 0;
  for (const Slot& slot : all)
    if (!slot.empty()) insert((slot.tag & bit) != 0 ? upper : part, slot), ++moved_slots_;
}

void FingerprintTable::insert(Part& part, const Slot& slot) {
  uint32_t i = slot.tag & kHomeMask;
  while (!part.slots[i].empty()) i = (i + 1) & kHomeMask;
  part.slots[i] = slot;
  ++part.used;
}

}  // namespace kvstore
