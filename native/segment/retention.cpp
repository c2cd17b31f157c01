#include "segment/retention.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

namespace kvstore {
namespace {

constexpr uint32_t kDueSteps = 64;  // ended beside another call
constexpr int kIdleLooks = 16;      // accounts looked at for one that nobody needs

uint64_t as_number(const NamespaceId& ns) {
  uint64_t number;
  std::memcpy(&number, ns.data(), sizeof(number));
  return number;
}

uint64_t deadline_of(const wire::KeepWish& wish, uint64_t now_ms) {
  const uint32_t ttl_ms = wish.ttl_ms == 0 ? wire::kKeepTtlMsDefault : wish.ttl_ms;
  return now_ms + std::min(ttl_ms, wire::kKeepTtlMsMax);
}

}  // namespace

bool Retention::keep(const Object& object, const wire::KeepWish& wish, uint64_t now_ms) noexcept {
  expire(now_ms, kDueSteps);
  try {
    switch (wish.intent) {
      case wire::Intent::kRetain:
        return retain(object, wish, now_ms);
      case wire::Intent::kDemote:
        return demote(object);
      case wire::Intent::kNormal:
        release(object.slot, object.ns, true);
        return true;
    }
  } catch (const std::exception&) {  // out of memory: the object is as any other
    release(object.slot, object.ns, true);
  }
  return false;
}

bool Retention::retain(const Object& object, const wire::KeepWish& wish, uint64_t now_ms) {
  auto& part = part_of(object.slot);
  const auto known = part.find(object.slot);
  if (known != part.end()) {
    Retained& retained = known->second;
    deadlines_.remove(retained);
    retained.deadline_ms = std::max(retained.deadline_ms, deadline_of(wish, now_ms));
    deadlines_.add(retained);
    return true;
  }
  Account* const account = account_of(object.ns);
  if (account == nullptr || object.size_bytes > room_bytes(object.ns)) {
    refuse(object);
    return false;
  }
  release(object.slot, object.ns, true);  // demoted until now
  make_room(object.slot);
  Retained& retained = part[object.slot];
  retained.slot = object.slot;
  retained.size_bytes = object.size_bytes;
  retained.ns = object.ns;
  retained.deadline_ms = deadline_of(wish, now_ms);
  deadlines_.add(retained);
  totals_.retained_bytes += object.size_bytes;
  ++totals_.retained_objects;
  account->retained_bytes += object.size_bytes;
  ++account->retained_objects;
  set(object.slot, Keep::kRetained);
  return true;
}

uint64_t Retention::room_bytes(const NamespaceId& ns) const {
  const auto left = [](uint64_t bytes_max, uint64_t taken_bytes) {
    return bytes_max - std::min(taken_bytes, bytes_max);
  };
  const auto account = accounts_.find(as_number(ns));
  const uint64_t own_bytes = account == accounts_.end() ? 0 : account->second.retained_bytes;
  return std::min(left(limits_.bytes_max, totals_.retained_bytes),
                  left(limits_.namespace_bytes_max, own_bytes));
}

void Retention::refuse(const Object& object) noexcept {
  ++totals_.over_budget;
  const auto account = accounts_.find(as_number(object.ns));
  if (account != accounts_.end()) ++account->second.over_budget;
  want(object);
}

void Retention::want(const Object& object) noexcept {
  if (of(object.slot) == Keep::kWanted) return;
  release(object.slot, object.ns, true);  // demoted until now, which is not what is wanted of it
  try {
    make_room(object.slot);
  } catch (const std::exception&) {
    return;  // out of memory: the object is as any other
  }
  set(object.slot, Keep::kWanted);
}

void Retention::spare(const Object& object) noexcept {
  ++totals_.demotions_contradicted;
  if (of(object.slot) != Keep::kRetained) want(object);
}

bool Retention::demotes(const Object& object) {
  judge_.demoted(object.ns, object.id);
  Account* const account = account_of(object.ns);
  if (account == nullptr || !judge_.heeds(object.ns)) return false;
  make_room(object.slot);
  ++totals_.demoted_objects;
  ++account->demoted_objects;
  keeps_[object.slot] = Keep::kDemoted;
  return true;
}

bool Retention::demote(const Object& object) {
  const bool was_demoted = of(object.slot) == Keep::kDemoted;
  release(object.slot, object.ns, !was_demoted);
  const bool heeded = demotes(object);
  if (heeded != was_demoted) tell_(object.slot, of(object.slot));
  totals_.demotions_ignored += !heeded;
  return heeded;
}

Keep Retention::came(const Object& object, wire::Intent intent, uint32_t object_count) noexcept {
  judge_.touched(object.ns, object.id, DemotionJudge::Touch::kCame, object_count);
  try {
    if (intent == wire::Intent::kDemote) demotes(object);
    if (intent == wire::Intent::kRetain) {
      make_room(object.slot);
      keeps_[object.slot] = Keep::kWanted;
    }
  } catch (const std::exception&) {  // out of memory: the object is as any other
  }
  return of(object.slot);
}

void Retention::used(uint32_t slot, const NamespaceId& ns, uint64_t id, uint32_t object_count) noexcept {
  judge_.touched(ns, id, DemotionJudge::Touch::kUsed, object_count);
  if (is_weighed(of(slot))) release(slot, ns, true);
}

void Retention::forget(uint32_t slot, const NamespaceId& ns) noexcept { release(slot, ns, false); }

void Retention::release(uint32_t slot, const NamespaceId& ns, bool tell) noexcept {
  const Keep was = of(slot);
  if (was == Keep::kNormal) return;
  const auto account = accounts_.find(as_number(ns));
  if (was == Keep::kDemoted) {
    --totals_.demoted_objects;
    if (account != accounts_.end()) --account->second.demoted_objects;
  } else if (was == Keep::kRetained) {
    auto& part = part_of(slot);
    const auto retained = part.find(slot);
    totals_.retained_bytes -= retained->second.size_bytes;
    --totals_.retained_objects;
    if (account != accounts_.end()) {
      account->second.retained_bytes -= retained->second.size_bytes;
      --account->second.retained_objects;
    }
    if (retained->second.next != nullptr) deadlines_.remove(retained->second);
    part.erase(retained);
  }
  keeps_[slot] = Keep::kNormal;
  if (tell) tell_(slot, Keep::kNormal);
}

void Retention::expire(uint64_t now_ms, uint32_t steps_max) noexcept {
  deadlines_.pass(now_ms, steps_max, [this](DeadlineWheel::Node& node) {
    const auto& retained = static_cast<Retained&>(node);
    ++totals_.expired;
    release(retained.slot, NamespaceId(retained.ns), true);
  });
}

void Retention::make_room(uint32_t slot) {
  if (keeps_.size() <= slot) keeps_.resize(slot + 1, Keep::kNormal);
}

void Retention::set(uint32_t slot, Keep keep) {
  keeps_[slot] = keep;
  tell_(slot, keep);
}

Retention::Account* Retention::account_of(const NamespaceId& ns) {
  const auto found = accounts_.find(as_number(ns));
  if (found != accounts_.end()) return &found->second;
  if (accounts_.size() >= kNamespacesMax) {
    auto idle = accounts_.begin();
    for (int look = 1; look < kIdleLooks && idle->second.retained_objects + idle->second.demoted_objects > 0;
         ++look)
      ++idle;
    if (idle->second.retained_objects + idle->second.demoted_objects > 0) return nullptr;
    accounts_.erase(idle);
  }
  Account& account = accounts_[as_number(ns)];
  account.ns = ns;
  return &account;
}

std::vector<Retention::Account> Retention::accounts() const {
  std::vector<Account> out;
  out.reserve(accounts_.size());
  for (const auto& [number, account] : accounts_) {
    if (account.retained_objects + account.demoted_objects + account.over_budget == 0) continue;
    out.push_back(account);
    out.back().demotions_heeded = judge_.heeds(account.ns);
  }
  return out;
}

}  // namespace kvstore
