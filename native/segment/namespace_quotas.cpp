#include "segment/namespace_quotas.hpp"

#include <algorithm>

namespace kvstore {

void NamespaceQuotas::set(const std::vector<QuotaLimit>& limits) {
  Accounts accounts;
  for (const auto& [ns, account] : accounts_)
    if (account.bytes > 0) accounts.emplace(ns, Account{account.bytes, {}});
  std::vector<Group> groups;
  groups.reserve(limits.size());
  for (const QuotaLimit& limit : limits) {
    Group group{limit.limit_bytes, 0, limit.namespaces, 0};
    const auto number = static_cast<uint32_t>(groups.size());
    for (const NamespaceId& ns : limit.namespaces) {
      Account& account = accounts[as_number(ns)];
      if (!account.groups.empty() && account.groups.back() == number) continue;  // named twice
      account.groups.push_back(number);
      group.used_bytes += account.bytes;
    }
    groups.push_back(std::move(group));
  }
  accounts_.swap(accounts);
  groups_.swap(groups);
}

void NamespaceQuotas::added(const NamespaceId& ns, uint64_t bytes) noexcept {
  const auto found = accounts_.find(as_number(ns));
  if (found == accounts_.end()) return;
  found->second.bytes += bytes;
  for (const uint32_t group : found->second.groups) groups_[group].used_bytes += bytes;
}

void NamespaceQuotas::removed(const NamespaceId& ns, uint64_t bytes) noexcept {
  const auto found = accounts_.find(as_number(ns));
  if (found == accounts_.end()) return;
  Account& account = found->second;
  account.bytes -= std::min(account.bytes, bytes);
  for (const uint32_t number : account.groups) {
    Group& group = groups_[number];
    group.used_bytes -= std::min(group.used_bytes, bytes);
  }
  if (account.bytes == 0 && account.groups.empty()) accounts_.erase(found);
}

uint64_t NamespaceQuotas::bytes(const NamespaceId& ns) const {
  const auto found = accounts_.find(as_number(ns));
  return found != accounts_.end() ? found->second.bytes : 0;
}

NamespaceQuotas::Group* NamespaceQuotas::over_limit(const NamespaceId& ns, uint64_t coming_bytes) noexcept {
  Group* worst = nullptr;
  if (groups_.empty()) return worst;
  const auto found = accounts_.find(as_number(ns));
  if (found == accounts_.end()) return worst;
  for (const uint32_t number : found->second.groups) {
    Group& group = groups_[number];
    if (group.excess(coming_bytes) > (worst != nullptr ? worst->excess(coming_bytes) : 0)) worst = &group;
  }
  return worst;
}

NamespaceQuotas::Group* NamespaceQuotas::over_limit() noexcept {
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [](const Group& group) { return group.excess() > 0; });
  return found != groups_.end() ? &*found : nullptr;
}

}  // namespace kvstore
