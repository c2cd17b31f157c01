#include "segment/disk/disk_index.hpp"

#include <algorithm>
#include <cstring>

#include "segment/disk/disk_io.hpp"
#include "segment/namespace_table.hpp"

namespace kvstore {

DiskIndex::DiskIndex(uint32_t region_count) : regions_(region_count) {}

DiskIndex::Entry* DiskIndex::find(const Fingerprint& fp) {
  const auto it = entries_.find(fp);
  return it == entries_.end() ? nullptr : &it->second;
}

void DiskIndex::drop(std::unordered_map<Fingerprint, Entry, FingerprintHash>::iterator it) {
  const auto count = by_namespace_.find(as_number(it->second.ns));
  if (count != by_namespace_.end() && --count->second == 0) by_namespace_.erase(count);
  bytes_ -= it->second.place.blocks * DiskIo::kBlockBytes;
  entries_.erase(it);
}

void DiskIndex::insert(const Fingerprint& fp, const NamespaceId& ns, const DiskPlace& place) {
  erase(fp);
  Region& region = regions_[place.region];
  region.pages.push_back(fp);
  region.used_at = ++uses_;
  Entry entry;
  entry.place = place;
  entry.ns = ns;
  entries_.emplace(fp, entry);
  ++by_namespace_[as_number(ns)];
  bytes_ += place.blocks * DiskIo::kBlockBytes;
}

bool DiskIndex::erase(const Fingerprint& fp) {
  const auto it = entries_.find(fp);
  if (it == entries_.end()) return false;
  drop(it);
  return true;
}

std::optional<uint32_t> DiskIndex::take_free() {
  if (free_.empty()) return std::nullopt;
  const uint32_t region = free_.back();
  free_.pop_back();
  return region;
}

void DiskIndex::close(uint32_t region) { regions_[region].closed = true; }

bool DiskIndex::is_pinned(uint32_t region, uint64_t now_ms) const {
  const auto& pages = regions_[region].pages;
  return std::any_of(pages.begin(), pages.end(), [&](const Fingerprint& fp) {
    const auto it = entries_.find(fp);
    return it != entries_.end() && it->second.place.region == region && it->second.pinned_until_ms > now_ms;
  });
}

bool DiskIndex::evict_region(uint64_t now_ms, std::vector<JournalEntry>& removed) {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].closed) order.push_back(i);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return regions_[a].used_at < regions_[b].used_at; });
  if (order.empty()) return false;
  // Pins keep what they promise as long as that is no more than the older half of everything.
  const auto half = order.begin() + static_cast<ptrdiff_t>((order.size() + 1) / 2);
  auto victim =
      std::find_if(order.begin(), half, [&](uint32_t region) { return !is_pinned(region, now_ms); });
  if (victim == half) victim = order.begin();
  Region& region = regions_[*victim];
  free_.reserve(free_.size() + 1);
  removed.reserve(removed.size() + region.pages.size());
  for (const Fingerprint& fp : region.pages) {
    const auto it = entries_.find(fp);
    if (it == entries_.end() || it->second.place.region != *victim) continue;
    removed.push_back({fp, it->second.ns, it->second.place.length, JournalOp::kRemove});
    drop(it);
  }
  region = Region{};
  free_.push_back(*victim);
  return true;
}

void DiskIndex::list(uint32_t region, std::vector<JournalEntry>& entries) const {
  for (const Fingerprint& fp : regions_[region].pages) {
    const auto it = entries_.find(fp);
    if (it == entries_.end() || it->second.place.region != region) continue;
    entries.push_back({fp, it->second.ns, it->second.place.length, JournalOp::kAdd});
  }
}

std::vector<NamespaceId> DiskIndex::namespaces() const {
  std::vector<NamespaceId> out;
  for (const auto& [number, count] : by_namespace_) {
    NamespaceId ns;
    std::memcpy(ns.data(), &number, sizeof(number));
    out.push_back(ns);
  }
  return out;
}

}  // namespace kvstore
