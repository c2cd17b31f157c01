#include "client/location_cache.hpp"

#include <algorithm>

namespace kvstore {

LocationCache::LocationCache(size_t entries_max)
    : sets_(entries_max == 0 ? 0 : std::max<size_t>(entries_max / kWays, 1)) {}

void LocationCache::find(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries,
                         Time now, std::vector<ObjectLocation>* locations) const {
  const MutexLock lock(mutex_);
  if (items_.empty()) return;
  for (const uint32_t entry : entries) {
    const Fingerprint& wanted = fingerprints[entry];
    const Item* set = &items_[set_of(wanted)];
    for (size_t way = 0; way < kWays; ++way)
      if (set[way].until > now && set[way].fingerprint == wanted) (*locations)[entry] = set[way].location;
  }
}

void LocationCache::store(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries,
                          const std::vector<ObjectLocation>& locations, Time now, Time until) {
  if (sets_ == 0) return;
  const MutexLock lock(mutex_);
  if (items_.empty()) items_.resize(sets_ * kWays);
  for (const uint32_t entry : entries) {
    Item* set = &items_[set_of(fingerprints[entry])];
    Item* place = set;
    for (size_t way = 0; way < kWays; ++way) {
      if (set[way].fingerprint == fingerprints[entry]) {
        place = &set[way];
        break;
      }
      if (set[way].until < place->until) place = &set[way];
    }
    *place = {fingerprints[entry], locations[entry], until > now ? until : now};
  }
}

void LocationCache::forget(const std::vector<Fingerprint>& fingerprints,
                           const std::vector<uint32_t>& entries) {
  const MutexLock lock(mutex_);
  if (items_.empty()) return;
  for (const uint32_t entry : entries) {
    Item* set = &items_[set_of(fingerprints[entry])];
    for (size_t way = 0; way < kWays; ++way)
      if (set[way].fingerprint == fingerprints[entry]) set[way].until = Time{};
  }
}

}  // namespace kvstore
