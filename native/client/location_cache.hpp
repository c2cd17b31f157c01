// Where this client has found, put or pinned objects: what lets a call go straight to the owner, also while no
// master answers.
//
// A hint and never an answer: the owner checks key, generation and digest, and what it does not have any more is
// forgotten. Bounded and set-associative: it never allocates after its first use, and a full set drops what was
// used longest ago. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

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
  explicit LocationCache(size_t entries_max);

  // locations[i] of fingerprints[i], for the given entries; an entry that is not cached is left alone. Counts as a
  // use.
  void find(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries,
            std::vector<ObjectLocation>* locations);
  void store(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries,
             const std::vector<ObjectLocation>& locations);
  void forget(const std::vector<Fingerprint>& fingerprints, const std::vector<uint32_t>& entries);

 private:
  static constexpr size_t kWays = 4;
  struct Item {
    Fingerprint fingerprint;
    ObjectLocation location;  // unknown: the item is free
    uint32_t used = 0;        // the call that used it last
  };
  static_assert(sizeof(Item) == 32, "the setting's documentation says so");
  Item* set_of(const Fingerprint& f) REQUIRES(mutex_) { return &items_[(f.hi % sets_) * kWays]; }
  // How many calls ago; right over a wrap of the count.
  uint32_t age(const Item& item) const REQUIRES(mutex_) { return calls_ - item.used; }

  const size_t sets_;
  Mutex mutex_;
  std::vector<Item> items_ GUARDED_BY(mutex_);
  uint32_t calls_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvstore
