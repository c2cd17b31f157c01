#include "client/location_cache.hpp"

#include <algorithm>

namespace kvstore {

LocationCache::LocationCache(size_t entries_max)
    : sets_(entries_max == 0 ? 0 : std::max<size_t>(entries_max / kWays, 1)) {}

void LocationCache::find(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries,
                         std::vector<ObjectLocation>* locations) {
  const MutexLock lock(mutex_);
  if (items_.empty()) return;
  ++calls_;
  for (const uint32_t entry : entries) {
    Item* const set = set_of(fingerprints[entry]);
    for (Item* item = set; item != set + kWays; ++item)
      if (item->location.known() && item->fingerprint == fingerprints[entry]) {
        item->used = calls_;
        (*locations)[entry] = item->location;
      }
  }
}

void LocationCache::store(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries,
                          const std::vector<ObjectLocation>& locations) {
  if (sets_ == 0 || entries.empty()) return;
  const MutexLock lock(mutex_);
  if (items_.empty()) items_.resize(sets_ * kWays);
  ++calls_;
  for (const uint32_t entry : entries) {
    Item* const set = set_of(fingerprints[entry]);
    Item* place = set;
    for (Item* item = set; item != set + kWays; ++item) {
      if (item->location.known() && item->fingerprint == fingerprints[entry]) {
        place = item;
        break;
      }
      const bool better = place->location.known() && (!item->location.known() || age(*item) > age(*place));
      if (better) place = item;
    }
    *place = {fingerprints[entry], locations[entry], calls_};
  }
}

void LocationCache::forget(const std::vector<Fingerprint>& fingerprints,
                           const std::vector<uint32_t>& entries) {
  const MutexLock lock(mutex_);
  if (items_.empty()) return;
  for (const uint32_t entry : entries) {
    Item* const set = set_of(fingerprints[entry]);
    for (Item* item = set; item != set + kWays; ++item)
      if (item->fingerprint == fingerprints[entry]) item->location = ObjectLocation{};
  }
}

}  // namespace kvstore
