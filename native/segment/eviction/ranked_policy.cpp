#include "segment/eviction/ranked_policy.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace kvstore {
namespace {

constexpr uint32_t kNurseryMax = 1024;  // sorting so many takes some tens of microseconds
constexpr uint32_t kNurseryShare = 32;  // at most one in so many objects is in it

}  // namespace

RankedPolicy::RankedPolicy(uint32_t slot_count, const Ranking& ranking)
    : ranking_(ranking), objects_(slot_count) {
  nursery_.reserve(kNurseryMax);
  nursery_order_.reserve(kNurseryMax);
}

RankedPolicy::Object& RankedPolicy::ranked(uint32_t slot) {
  Object& object = objects_[slot];
  if (object.place == Place::kNone) throw std::logic_error("slot is not ranked");
  return object;
}

void RankedPolicy::remember(Object& object, uint8_t memory) {
  // Batches come deepest first. The shards of one page have the same depth; so have objects of no prefix, 0.
  const bool goes_on = last_depth_ == object.depth + 1u || (last_depth_ == object.depth && object.depth > 0);
  if (!goes_on) last_memories_ = {ranking_.first_seen(), ranking_.first_seen()};
  // Two have to agree: one may have been taken for another object, and would spoil all before it.
  const auto [last, before] = last_memories_;
  const uint8_t agreed = ranking_.better(last, before) == last ? before : last;
  object.memory = ranking_.better(memory, agreed);
  last_depth_ = object.depth;
  last_memories_ = {object.memory, last};
}

void RankedPolicy::on_insert(const Arrival& arrival) {
  Object& object = objects_[arrival.slot];
  if (object.place != Place::kNone) throw std::logic_error("slot is ranked already");
  ++now_;
  ++object_count_;
  object.id = arrival.id;
  object.depth = static_cast<uint16_t>(std::min<uint32_t>(arrival.depth, 0xFFFF));
  object.keep = as_ranked(arrival.keep);
  object.last_use = now_;
  uint8_t memory = ranking_.first_seen();
  if (ranking_.wants_ghosts()) {
    ghosts_.make_room(object_count_);
    if (const auto ghost = ghosts_.take(arrival.id, now_))
      memory = ranking_.seen_again(ghost->memory, ghost->gap, object_count_, true);
  }
  remember(object, memory);
  settle(arrival.slot, object);
  unpark_one();
}

void RankedPolicy::on_use(uint32_t slot) {
  Object& object = ranked(slot);
  ++now_;
  const uint32_t gap = now_ - object.last_use;
  unlist(object);
  remember(object, ranking_.seen_again(object.memory, gap, object_count_, false));
  object.last_use = now_;
  settle(slot, object);
}

void RankedPolicy::on_keep(uint32_t slot, Keep keep) {
  Object& object = ranked(slot);
  keep = as_ranked(keep);
  if (object.keep == keep) return;
  unlist(object);
  object.keep = keep;
  settle(slot, object);
}

// Its last use stays what it was: that it was looked at as a victim says nothing of its next use.
void RankedPolicy::on_spare(uint32_t slot) {
  Object& object = ranked(slot);
  unlist(object);
  push_hottest(slot, object, Place::kParked);
}

void RankedPolicy::on_evict(uint32_t slot) {
  Object& object = ranked(slot);
  if (ranking_.wants_ghosts()) ghosts_.put(object.id, object.memory, now_);
  remove(object);
}

void RankedPolicy::on_remove(uint32_t slot) { remove(ranked(slot)); }

void RankedPolicy::remove(Object& object) {
  unlist(object);
  object.place = Place::kNone;
  --object_count_;
}

uint32_t RankedPolicy::coldest() {
  if (victim_ != kNoSlot) return victim_;
  Keep keep = Keep::kNormal;
  victim_ = worst(keep);
  // What waits in the nursery goes before what is retained or wanted.
  if ((victim_ == kNoSlot || keep >= Keep::kWanted) && !nursery_.empty()) {
    empty_nursery();
    victim_ = worst(keep);
  }
  if (victim_ == kNoSlot) victim_ = lists_[kParked].coldest;
  return victim_;
}

uint32_t RankedPolicy::worst(Keep& keep) const {
  uint32_t victim = kNoSlot;
  double lowest = std::numeric_limits<double>::infinity();
  for (uint32_t word = 0; word < listed_.size(); ++word) {
    const Keep its_keep = static_cast<Keep>(word * 64 / kMemories);
    const bool is_weighed = ranking_.weighs_keep() && its_keep != Keep::kRetained;
    if (victim != kNoSlot && its_keep != keep && !is_weighed) break;
    for (uint64_t bits = listed_[word]; bits != 0; bits &= bits - 1) {
      const uint32_t at = word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      const List& list = lists_[at];
      const double worth = ranking_.worth(
          {its_keep, static_cast<uint8_t>(at % kMemories), static_cast<double>(now_ - list.coldest_last_use),
           static_cast<double>(object_count_), static_cast<double>(list.size) / object_count_});
      if (worth >= lowest) continue;
      lowest = worth;
      keep = its_keep;
      victim = list.coldest;
    }
  }
  return victim;
}

uint32_t RankedPolicy::nursery_max() const { return std::min(kNurseryMax, object_count_ / kNurseryShare); }

void RankedPolicy::settle(uint32_t slot, Object& object) {
  victim_ = kNoSlot;
  if (object.keep == Keep::kDemoted) return push_hottest(slot, object, Place::kListed);  // it may go at once
  if (object.place == Place::kNursery) return;
  object.place = Place::kNursery;
  nursery_.push_back(slot);
  if (nursery_.size() > nursery_max() || nursery_.size() == kNurseryMax) empty_nursery();
}

void RankedPolicy::empty_nursery() {
  nursery_order_.clear();
  for (uint32_t i = 0; i < nursery_.size(); ++i)
    nursery_order_.push_back(uint64_t{0xFFFFu - objects_[nursery_[i]].depth} << 32 | i);
  std::sort(nursery_order_.begin(), nursery_order_.end());
  for (const uint64_t key : nursery_order_) {
    const uint32_t slot = nursery_[static_cast<uint32_t>(key)];
    Object& object = objects_[slot];
    if (object.place == Place::kNursery) push_hottest(slot, object, Place::kListed);
  }
  nursery_.clear();
}

void RankedPolicy::unpark_one() {
  const uint32_t slot = lists_[kParked].coldest;
  if (slot == kNoSlot) return;
  Object& object = objects_[slot];
  unlist(object);
  push_hottest(slot, object, Place::kListed);
}

void RankedPolicy::push_hottest(uint32_t slot, Object& object, Place place) {
  object.place = place;
  const uint32_t at = list_of(object);
  List& list = lists_[at];
  object.colder = list.hottest;
  object.hotter = kNoSlot;
  if (list.hottest != kNoSlot) {
    objects_[list.hottest].hotter = slot;
  } else {
    list.coldest = slot;
    list.coldest_last_use = object.last_use;
    if (at != kParked) listed_[at / 64] |= uint64_t{1} << at % 64;
  }
  list.hottest = slot;
  ++list.size;
  victim_ = kNoSlot;
}

void RankedPolicy::unlist(Object& object) {
  victim_ = kNoSlot;
  if (object.place != Place::kListed && object.place != Place::kParked) return;
  const uint32_t at = list_of(object);
  List& list = lists_[at];
  if (object.colder != kNoSlot) {
    objects_[object.colder].hotter = object.hotter;
  } else {
    list.coldest = object.hotter;
    if (object.hotter != kNoSlot) list.coldest_last_use = objects_[object.hotter].last_use;
  }
  if (object.hotter != kNoSlot)
    objects_[object.hotter].colder = object.colder;
  else
    list.hottest = object.colder;
  if (--list.size == 0 && at != kParked) listed_[at / 64] &= ~(uint64_t{1} << at % 64);
  object.place = Place::kNone;
}

}  // namespace kvstore
