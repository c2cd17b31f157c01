// Where objects were a moment ago: what lets a get that follows an exists go straight to the segments.
//
// Bounded and set-associative: it never allocates after its first use, and a full set drops what would expire first. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/deadline.hpp"
#include "base/mutex.hpp"
#include "protocol/keys.hpp"
#include "protocol/wire.hpp"

namespace kvstore {

constexpr uint32_t kReplicasTried = 2;

// The segments that hold an object, best first.
struct ObjectLocation {
  std::array<uint32_t, kReplicasTried> segments{wire::kNoSegment, wire::kNoSegment};
  uint32_t length = 0;
  bool known() const { return segments[0] != wire::kNoSegment; }
};

class LocationCache {
 public:
  using Time = Deadline::Clock::time_point;

  explicit LocationCache(size_t entries_max);

  // locations[i] of fingerprints[i], for the given entries; an entry that is not cached or has expired is left alone.
  void find(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries, Time now,
            std::vector<ObjectLocation>* locations) const;
  void store(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries,
             const std::vector<ObjectLocation>& locations, Time now, Time until);
  void forget(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries);

 private:
  static constexpr size_t kWays = 4;
  struct Item {
    Fingerprint fingerprint;
    ObjectLocation location;
    Time until{};
  };
  size_t set_of(const Fingerprint& f) const { return (f.hi % sets_) * kWays; }

  const size_t sets_;
  mutable Mutex mutex_;
  std::vector<Item> items_ GUARDED_BY(mutex_);
};

}  // namespace kvstore
