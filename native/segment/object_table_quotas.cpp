// Eviction for quotas: a group of namespaces that has more than it may gives up its own, the longest unused first.
#include <algorithm>
#include <exception>

#include "segment/object_table.hpp"

namespace kvstore {
namespace {

constexpr size_t kMembersLooked = 64;     // namespaces of a group whose longest unused objects are compared
constexpr uint32_t kPassedOverMax = 256;  // objects in a row that may not go, before it is given up

}  // namespace

uint32_t ObjectTable::longest_unused(NamespaceQuotas::Group& group) const noexcept {
  uint32_t victim = kNoSlot, age = 0;
  const size_t members = group.namespaces.size();
  for (size_t i = 0; i < std::min(members, kMembersLooked); ++i) {
    const uint32_t first = namespaces_.first(group.namespaces[(group.hand + i) % members]);
    if (first == kNoSlot) continue;
    const uint32_t its_age = uses_ - records_[first].used_at;
    if (victim != kNoSlot && its_age <= age) continue;
    victim = first;
    age = its_age;
  }
  if (members > kMembersLooked) group.hand = (group.hand + kMembersLooked) % members;
  return victim;
}

ObjectTable::Evicted ObjectTable::evict_over_quota(NamespaceQuotas::Group& group, uint64_t coming_bytes,
                                                   uint32_t steps_max, uint64_t now_ms, uint32_t own_batch,
                                                   uint64_t seq,
                                                   std::vector<JournalEntry>& removed) noexcept {
  retention_.expire(now_ms, steps_max);
  Evicted result;
  seq -= removed.size();
  const uint64_t used_before = used_bytes();
  uint32_t passed_over = 0;
  // What is retained goes once nothing else was found: the quota is a limit, a retention is a wish.
  bool takes_retained = false;
  while (result.looked_at < steps_max && group.excess(coming_bytes) > 0) {
    try {  // before anything is removed: what is removed has to be reported
      if (removed.size() == removed.capacity()) removed.reserve(std::max<size_t>(16, 2 * removed.size()));
    } catch (const std::exception&) {
      break;
    }
    const uint32_t victim = longest_unused(group);
    if (victim == kNoSlot && group.hand == 0) {
      result.exhausted = true;
      break;
    }
    ++result.looked_at;
    if (victim != kNoSlot) {
      const bool spared = is_spared(victim);
      const bool kept = !takes_retained && records_[victim].keep == Keep::kRetained;
      if (!spared && !kept && shards_.take_out_idle(victim, now_ms)) {
        policy_->on_evict(victim);
        removed.push_back(take_out(victim, true, seq + removed.size()));
        passed_over = 0;
        continue;
      }
      result.spared += spared && records_[victim].batch != own_batch;
      result.blocked += !spared && !kept;
      namespaces_.touch(victim, records_[victim].ns);  // the next look finds another one
    }
    if (++passed_over < kPassedOverMax) continue;
    if (takes_retained) {
      result.exhausted = true;
      break;
    }
    takes_retained = true;
    passed_over = 0;
  }
  result.freed_bytes = used_before - std::min(used_before, used_bytes());
  return result;
}

}  // namespace kvstore
