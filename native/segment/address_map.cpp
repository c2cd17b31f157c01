#include "segment/address_map.hpp"

namespace kvstore {

void AddressMap::set_reach(uint64_t offset, uint64_t size, uint32_t slot) noexcept {
  if (size == 0) return;
  const uint64_t last = (offset + size - 1) / kRegionBytes;
  for (uint64_t region = offset / kRegionBytes + 1; region <= last; ++region)
    regions_[region].reaches_in = slot;
}

void AddressMap::add(uint32_t slot, uint64_t offset, uint64_t size) noexcept {
  Region& region = regions_[offset / kRegionBytes];
  links_[slot] = {kNoSlot, region.first};
  if (region.first != kNoSlot) links_[region.first].previous = slot;
  region.first = slot;
  set_reach(offset, size, slot);
}

void AddressMap::remove(uint32_t slot, uint64_t offset, uint64_t size) noexcept {
  const Link link = links_[slot];
  (link.previous == kNoSlot ? regions_[offset / kRegionBytes].first : links_[link.previous].next) = link.next;
  if (link.next != kNoSlot) links_[link.next].previous = link.previous;
  links_[slot] = Link{};
  set_reach(offset, size, kNoSlot);
}

}  // namespace kvstore
