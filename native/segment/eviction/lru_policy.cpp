// Least recently used, as intrusive lists over slot numbers, one for each class of keeping.
#include <array>
#include <stdexcept>
#include <vector>

#include "segment/eviction/eviction_policy.hpp"

namespace kvstore {
namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(uint32_t slot_count) : links_(slot_count) {}

  void grow(uint32_t slot_count) override { links_.resize(slot_count); }
  void on_insert(const Arrival& arrival) override {
    if (links_[arrival.slot].listed) throw std::logic_error("slot is ranked already");
    push_hottest(arrival.slot, arrival.keep);
  }
  void on_use(uint32_t slot) override { push_hottest(slot, unlink(slot)); }
  void on_keep(uint32_t slot, Keep keep) override {
    if (links_[slot].listed && links_[slot].keep == keep) return;
    unlink(slot);
    push_hottest(slot, keep);
  }
  // What is pinned now is about to be read: ranking it as just used costs nothing and keeps every scan
  // moving.
  void on_spare(uint32_t slot) override { on_use(slot); }
  void on_evict(uint32_t slot) override { unlink(slot); }
  void on_remove(uint32_t slot) override { unlink(slot); }
  uint32_t coldest() override {
    for (const List& list : lists_)
      if (list.coldest != kNoSlot) return list.coldest;
    return kNoSlot;
  }

 private:
  struct Link {
    uint32_t colder = kNoSlot;
    uint32_t hotter = kNoSlot;
    Keep keep = Keep::kNormal;
    bool listed = false;
  };
  struct List {
    uint32_t coldest = kNoSlot;
    uint32_t hottest = kNoSlot;
  };

  List& list_of(Keep keep) { return lists_[static_cast<size_t>(keep)]; }
  void push_hottest(uint32_t slot, Keep keep) {
    List& list = list_of(keep);
    links_[slot] = {list.hottest, kNoSlot, keep, true};
    if (list.hottest != kNoSlot) links_[list.hottest].hotter = slot;
    list.hottest = slot;
    if (list.coldest == kNoSlot) list.coldest = slot;
  }
  Keep unlink(uint32_t slot) {
    Link& link = links_[slot];
    if (!link.listed) throw std::logic_error("slot is not ranked");
    const Keep keep = link.keep;
    List& list = list_of(keep);
    (link.colder == kNoSlot ? list.coldest : links_[link.colder].hotter) = link.hotter;
    (link.hotter == kNoSlot ? list.hottest : links_[link.hotter].colder) = link.colder;
    link = Link{};
    return keep;
  }

  std::vector<Link> links_;
  std::array<List, 3> lists_;  // by Keep: the first to go first
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru_policy(uint32_t slot_count) {
  return std::make_unique<LruPolicy>(slot_count);
}

}  // namespace kvstore
