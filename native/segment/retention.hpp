// What writers want to become of their objects when space runs short: some are retained for a time, within budgets,
// and some demoted. The eviction policy is told what counts; what it makes of it is its own business.
//
//   retain   until a deadline, as long as the budgets of the namespace and of the segment allow: without them whoever
//            retains everything would leave no room for anybody. Over a budget the object is wanted until it is used
//            again: the policy weighs that
//   demote   until it is used again, which proves the wish wrong; unless the demotions of its namespace have been
//            wrong on the whole (demotion_judge.hpp)
//
// Nothing here scans: deadlines come by a wheel, a few at a time. Not thread-safe: the segment store's main mutex guards
// it. Times are milliseconds of any monotonic clock. Wishes live as long as the process.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/keys.hpp"
#include "protocol/wire.hpp"
#include "segment/deadline_wheel.hpp"
#include "segment/demotion_judge.hpp"
#include "segment/eviction/eviction_policy.hpp"

namespace kvstore {

struct RetentionLimits {
  uint64_t bytes_max = 0;            // retained in all
  uint64_t namespace_bytes_max = 0;  // and of one namespace
};

class Retention {
 public:
  static constexpr uint32_t kNamespacesMax = 4096;  // that have wishes at a time

  // Whoever ranks objects is told what one that is ranked is from now on. It outlives this, and throws nothing.
  using Tell = std::function<void(uint32_t slot, Keep keep)>;
  // `secret`: see DemotionJudge.
  Retention(const RetentionLimits& limits, Tell tell, uint64_t secret)
      : limits_(limits), tell_(std::move(tell)), judge_(secret) {}
  Retention(const Retention&) = delete;
  Retention& operator=(const Retention&) = delete;

  // An object that is ranked. `id`: of the object, and alike after it was evicted.
  struct Object {
    uint32_t slot = kNoSlot;
    NamespaceId ns{};
    uint64_t id = 0;
    uint64_t size_bytes = 0;  // that it takes of the pool
  };
  // False: the object is only wanted, because a budget is full, or as any other, because of what was learned about
  // demotions. A retention is never shortened by another one.
  bool keep(const Object& object, const wire::KeepWish& wish, uint64_t now_ms) noexcept;
  // Bytes that may still be retained of this namespace. Whoever has a chain of pages sees with it which of them fit, from
  // the head on; what does not is refused.
  uint64_t room_bytes(const NamespaceId& ns) const;
  void refuse(const Object& object) noexcept;
  // It is to be demoted, but what is wanted of deeper pages of its chain contradicts that: it is wanted, too.
  void spare(const Object& object) noexcept;
  Keep of(uint32_t slot) const { return slot < keeps_.size() ? keeps_[slot] : Keep::kNormal; }

  // The object comes, with a wish that keep() is told of once the rest of its chain is here: until then it is wanted, or
  // demoted, lest it go before. What it is to be ranked as; nobody is told. `object_count`: how many there are.
  Keep came(const Object& object, wire::Intent intent, uint32_t object_count) noexcept;
  void used(uint32_t slot, const NamespaceId& ns, uint64_t id, uint32_t object_count) noexcept;
  // The object is gone.
  void forget(uint32_t slot, const NamespaceId& ns) noexcept;
  // Ends retentions whose time is over, about `steps_max` of them.
  void expire(uint64_t now_ms, uint32_t steps_max) noexcept;

  struct Totals {
    uint64_t retained_bytes = 0;
    uint64_t retained_objects = 0;
    uint64_t demoted_objects = 0;
    uint64_t over_budget = 0;  // objects that were not retained, since the start, as the next three
    uint64_t demotions_ignored =
        0;  // objects that were not demoted, because of what was learned about demotions
    uint64_t demotions_contradicted = 0;  // and those that were spared
    uint64_t expired = 0;                 // objects whose retention ran out
  };
  const Totals& totals() const { return totals_; }
  const RetentionLimits& limits() const { return limits_; }
  struct Account {
    NamespaceId ns{};
    uint64_t retained_bytes = 0;
    uint64_t retained_objects = 0;
    uint64_t demoted_objects = 0;
    uint64_t over_budget = 0;
    bool demotions_heeded = true;
  };
  // Of the namespaces that have wishes now.
  std::vector<Account> accounts() const;

 private:
  struct Retained : DeadlineWheel::Node {
    uint32_t slot = kNoSlot;
    uint64_t size_bytes = 0;
    NamespaceId ns{};
  };
  std::unordered_map<uint32_t, Retained>& part_of(uint32_t slot) {
    return retained_[slot % retained_.size()];
  }
  Account* account_of(const NamespaceId& ns);
  bool retain(const Object& object, const wire::KeepWish& wish, uint64_t now_ms);
  bool demote(const Object& object);
  void want(const Object& object) noexcept;  // until it is used
  // Whether the demotion is heeded. If so it is in the books.
  bool demotes(const Object& object);
  // The object is neither retained nor demoted from now on. `tell`: it is still ranked.
  void release(uint32_t slot, const NamespaceId& ns, bool tell) noexcept;
  static bool is_weighed(Keep keep) { return keep == Keep::kDemoted || keep == Keep::kWanted; }
  void make_room(uint32_t slot);
  void set(uint32_t slot, Keep keep);

  const RetentionLimits limits_;
  const Tell tell_;
  DemotionJudge judge_;
  DeadlineWheel deadlines_;
  std::vector<Keep> keeps_;  // by slot, as far as there were wishes
  // By slot, in parts: when one of them grows nobody waits for more than a part to be put in order again.
  std::array<std::unordered_map<uint32_t, Retained>, 256> retained_;
  std::unordered_map<uint64_t, Account> accounts_;  // by namespace
  Totals totals_;
};

}  // namespace kvstore
