// Which objects lie where: for each region of the data area the slots whose bytes begin in it, and the one that
// reaches into it from before. What begins in a region is found without order, in the time that it takes to walk
// over it. Not thread-safe: the owner locks.
#pragma once

#include <cstdint>
#include <vector>

#include "segment/by_slot.hpp"

namespace kvstore {

class AddressMap {
 public:
  static constexpr uint64_t kRegionBytes = 256 << 10;

  AddressMap(uint64_t capacity_bytes, uint32_t chunks_max)
      : regions_((capacity_bytes + kRegionBytes - 1) / kRegionBytes), links_(chunks_max) {}

  void add_chunk(uint32_t chunk, uint32_t places) { links_.add(chunk, places); }
  void remove_chunk(uint32_t chunk) noexcept { links_.remove(chunk); }

  // `slot` is in the map at most once; offset + size lies within the capacity.
  void add(uint32_t slot, uint64_t offset, uint64_t size) noexcept;
  void remove(uint32_t slot, uint64_t offset, uint64_t size) noexcept;

  uint64_t region_count() const { return regions_.size(); }
  // Calls each(slot) for those that lie in the region, at least in part.
  template <typename Each>
  void for_each(uint64_t region, Each&& each) const {
    if (regions_[region].reaches_in != kNoSlot) each(regions_[region].reaches_in);
    for (uint32_t slot = regions_[region].first; slot != kNoSlot; slot = links_[slot].next) each(slot);
  }

 private:
  struct Region {
    uint32_t first = kNoSlot;
    uint32_t reaches_in = kNoSlot;
  };
  struct Link {
    uint32_t previous = kNoSlot;
    uint32_t next = kNoSlot;
  };
  void set_reach(uint64_t offset, uint64_t size, uint32_t slot) noexcept;

  std::vector<Region> regions_;
  BySlot<Link> links_;
};

}  // namespace kvstore
