// Least recently used, as an intrusive list over slot numbers: no allocation after construction.
#include <stdexcept>

#include "segment/eviction/eviction_policy.hpp"

namespace kvstore {
namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(uint32_t slot_count) : links_(slot_count) {}

  void on_insert(uint32_t slot, uint64_t, uint32_t) override {
    if (links_[slot].listed) throw std::logic_error("slot is ranked already");
    push_hottest(slot);
  }
  void on_use(uint32_t slot) override {
    unlink(slot);
    push_hottest(slot);
  }
  // What is pinned now is about to be read: ranking it as just used costs nothing and keeps every scan
  // moving.
  void on_spare(uint32_t slot) override { on_use(slot); }
  void on_remove(uint32_t slot) override { unlink(slot); }
  uint32_t coldest() const override { return coldest_; }

 private:
  struct Link {
    uint32_t colder = kNoSlot;
    uint32_t hotter = kNoSlot;
    bool listed = false;
  };

  void push_hottest(uint32_t slot) {
    links_[slot] = {hottest_, kNoSlot, true};
    if (hottest_ != kNoSlot) links_[hottest_].hotter = slot;
    hottest_ = slot;
    if (coldest_ == kNoSlot) coldest_ = slot;
  }
  void unlink(uint32_t slot) {
    Link& link = links_[slot];
    if (!link.listed) throw std::logic_error("slot is not ranked");
    (link.colder == kNoSlot ? coldest_ : links_[link.colder].hotter) = link.hotter;
    (link.hotter == kNoSlot ? hottest_ : links_[link.hotter].colder) = link.colder;
    link = Link{};
  }

  std::vector<Link> links_;
  uint32_t coldest_ = kNoSlot;
  uint32_t hottest_ = kNoSlot;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru_policy(uint32_t slot_count) {
  return std::make_unique<LruPolicy>(slot_count);
}

}  // namespace kvstore
