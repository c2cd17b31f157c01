// The memory of the directory's entries: one location is one fingerprint on one segment. Locations lie in
// fixed chunks and never move; 32-bit numbers name them. Not thread-safe: the owner locks.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "protocol/keys.hpp"

namespace kvstore {

constexpr uint32_t kNoLocation = 0xFFFFFFFFu;

struct Location {
  Fingerprint fingerprint;
  uint32_t segment;
  uint32_t length;
  uint32_t ns;          // number in the namespace accounts
  uint32_t chain_next;  // next holder of the same fingerprint; next free location when free
  uint32_t list_previous;
  uint32_t list_next;
};
static_assert(sizeof(Location) == 40, "the memory budget per entry counts on it");

struct LocationList {
  uint32_t head = kNoLocation;
  uint32_t tail = kNoLocation;
  bool empty() const { return head == kNoLocation; }
};

class LocationStore {
 public:
  Location& operator[](uint32_t i) { return chunks_[i >> kChunkBits][i & (kChunkLocations - 1)]; }
  const Location& operator[](uint32_t i) const { return chunks_[i >> kChunkBits][i & (kChunkLocations - 1)]; }

  // So many more can be taken without fail. std::bad_alloc, and then nothing was changed.
  void reserve(uint64_t more) {
    if (count_ + more >= kNoLocation - kChunkLocations) throw std::bad_alloc();
    while (allocated() - count_ < more) chunks_.push_back(std::make_unique<Location[]>(kChunkLocations));
  }
  uint32_t take() {
    assert(count_ < allocated() && "reserve() came first");
    ++count_;
    if (free_ == kNoLocation) return fresh_++;
    const uint32_t taken = free_;
    free_ = (*this)[taken].chain_next;
    return taken;
  }
  void give_back(uint32_t i) {
    (*this)[i].chain_next = free_;
    free_ = i;
    --count_;
  }

  void push_front(LocationList& list, uint32_t i) {
    Location& location = (*this)[i];
    location.list_previous = kNoLocation;
    location.list_next = list.head;
    (list.empty() ? list.tail : (*this)[list.head].list_previous) = i;
    list.head = i;
  }
  // Everything on `from` comes before what is on `to`; O(1).
  void splice_front(LocationList& to, LocationList& from) {
    if (from.empty()) return;
    (*this)[from.tail].list_next = to.head;
    (to.empty() ? to.tail : (*this)[to.head].list_previous) = from.tail;
    to.head = from.head;
    from = LocationList{};
  }
  // Takes a location off the one of `lists` that it is on: which one matters at the ends alone.
  template <size_t kLists>
  void unlist(LocationList* const (&lists)[kLists], uint32_t i) {
    const Location& location = (*this)[i];
    if (location.list_previous != kNoLocation)
      (*this)[location.list_previous].list_next = location.list_next;
    else
      for (LocationList* list : lists)
        if (list->head == i) list->head = location.list_next;
    if (location.list_next != kNoLocation)
      (*this)[location.list_next].list_previous = location.list_previous;
    else
      for (LocationList* list : lists)
        if (list->tail == i) list->tail = location.list_previous;
  }

  uint64_t count() const { return count_; }
  uint64_t allocated() const { return uint64_t{chunks_.size()} << kChunkBits; }
  uint64_t memory_bytes() const { return allocated() * sizeof(Location); }

 private:
  static constexpr uint32_t kChunkBits = 14;
  static constexpr uint32_t kChunkLocations = 1u << kChunkBits;

  std::vector<std::unique_ptr<Location[]>> chunks_;
  uint32_t free_ = kNoLocation;  // given back, chained
  uint32_t fresh_ = 0;           // never taken from here on
  uint64_t count_ = 0;
};

}  // namespace kvstore
