// The mechanism that the policies share: objects that are alike to a ranking lie in one list,
// the longest unused first, so that the next victim is the worst of the lists' first ones: exactly, with no
// sampling and no sorting of objects. Evicted objects leave ghosts.
//
// What came or was used last waits in a small nursery and is listed from there in order of depth: an engine
// reads and writes a long prefix in several batches, head first, and the tail shall go first all the same.
//
// What was offered as a victim and spared is parked. It is offered again when nothing else is there; one is
// listed again for each object that comes, so that a put never has to get past many that are pinned.
#pragma once

#include <array>
#include <vector>

#include "segment/eviction/chunked_array.hpp"
#include "segment/eviction/eviction_policy.hpp"
#include "segment/eviction/ghost_table.hpp"
#include "segment/eviction/ranking.hpp"

namespace kvstore {

class RankedPolicy : public EvictionPolicy {
 public:
  // The ranking must outlive the policy, and may change what it says of what an object is worth.
  RankedPolicy(uint32_t slot_count, const Ranking& ranking);

  void grow(uint32_t slot_count) override { objects_.grow(slot_count); }
  void on_insert(const Arrival& arrival) override;
  void on_use(uint32_t slot) override;
  void on_keep(uint32_t slot, Keep keep) override;
  void on_spare(uint32_t slot) override;
  void on_evict(uint32_t slot) override;
  void on_remove(uint32_t slot) override;
  uint32_t coldest() override;

  uint32_t object_count() const { return object_count_; }
  uint64_t id(uint32_t slot) const { return objects_[slot].id; }
  Keep keep(uint32_t slot) const { return objects_[slot].keep; }
  uint32_t depth(uint32_t slot) const { return objects_[slot].depth; }
  bool has(uint32_t slot) const { return objects_[slot].place != Place::kNone; }
  // The ranking says otherwise now.
  void reconsider() { victim_ = kNoSlot; }

 private:
  enum class Place : uint8_t { kNone, kNursery, kListed, kParked };
  struct Object {
    uint64_t id = 0;
    uint32_t colder = kNoSlot;
    uint32_t hotter = kNoSlot;
    uint32_t last_use = 0;
    uint16_t depth = 0;
    uint8_t memory = 0;
    Keep keep : 4;
    Place place : 4;
    Object() : keep(Keep::kNormal), place(Place::kNone) {}
  };
  static_assert(sizeof(Object) == 24, "one for each slot");
  struct List {
    uint32_t coldest = kNoSlot;
    uint32_t hottest = kNoSlot;
    uint32_t coldest_last_use = 0;  // kept here, so that the search for a victim touches no object
    uint32_t size = 0;
  };
  static constexpr uint32_t kMemories = 128;
  static constexpr uint32_t kRanked = 4 * kMemories;  // lists
  static constexpr uint32_t kParked = kRanked;        // the one more

  // A page is of use whenever a deeper one of its prefix is: it is worth no less, and a prefix has no holes.
  void remember(Object& object, uint8_t memory);
  Object& ranked(uint32_t slot);  // throws std::logic_error when it isn't
  Keep as_ranked(Keep keep) const {
    return keep == Keep::kWanted && !ranking_.weighs_keep() ? Keep::kNormal : keep;
  }
  static uint32_t list_of(const Object& o) {
    return o.place == Place::kParked ? kParked : static_cast<uint32_t>(o.keep) * kMemories + o.memory;
  }
  void settle(uint32_t slot, Object& object);  // puts it where what was just used belongs
  void push_hottest(uint32_t slot, Object& object, Place place);
  void unlist(Object& object);  // out of its list, if it is in one
  void unpark_one();
  // The first of the list that is worth least, and how it is kept; kNoSlot when all are empty.
  uint32_t worst(Keep& keep) const;
  void empty_nursery();
  uint32_t nursery_max() const;
  void remove(Object& object);

  const Ranking& ranking_;
  ChunkedArray<Object> objects_;
  GhostTable ghosts_;
  std::array<List, kRanked + 1> lists_;
  std::array<uint64_t, kRanked / 64> listed_{};  // a bit for each list that isn't empty
  std::vector<uint32_t> nursery_;                // may name slots that have left it since
  std::vector<uint64_t> nursery_order_;
  uint32_t now_ = 0;
  uint32_t object_count_ = 0;
  // Of what came or was used just before, and what before that, as far as it is of the same prefix.
  uint32_t last_depth_ = 0;
  std::array<uint8_t, 2> last_memories_{};
  uint32_t victim_ = kNoSlot;  // what coldest() said, while it holds
};

}  // namespace kvstore
