// How many bytes each namespace has here, from when they are reserved until they can't be found any more, and how many
// groups of namespaces may have. A group is what a quota is of: one namespace, or all with one tag; a namespace may be in
// several. The master divides quotas among segments, and says here what is this one's part. Not thread-safe: the owner
// locks.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "protocol/keys.hpp"
#include "segment/namespace_table.hpp"

namespace kvstore {

struct QuotaLimit {
  uint64_t limit_bytes = 0;
  std::vector<NamespaceId> namespaces;
};

class NamespaceQuotas {
 public:
  struct Group {
    uint64_t limit_bytes = 0;
    uint64_t used_bytes = 0;
    std::vector<NamespaceId> namespaces;
    size_t hand = 0;  // the member that is looked at first, where they are many
    uint64_t excess(uint64_t coming_bytes = 0) const {
      return used_bytes + coming_bytes > limit_bytes ? used_bytes + coming_bytes - limit_bytes : 0;
    }
  };

  // In place of all that was set before. std::bad_alloc, and then nothing has changed.
  void set(const std::vector<QuotaLimit>& limits);

  // Whatever is added to a namespace has to be expected first, which allocates.
  void expect(const NamespaceId& ns) { accounts_.try_emplace(as_number(ns)); }
  void added(const NamespaceId& ns, uint64_t bytes) noexcept;
  void removed(const NamespaceId& ns, uint64_t bytes) noexcept;

  bool is_limited(const NamespaceId& ns) const {
    const auto found = groups_.empty() ? accounts_.end() : accounts_.find(as_number(ns));
    return found != accounts_.end() && !found->second.groups.empty();
  }
  uint64_t bytes(const NamespaceId& ns) const;
  // A group of the namespace that has more than it may once `coming_bytes` are added; the one that is furthest above.
  // Null: there is none.
  Group* over_limit(const NamespaceId& ns, uint64_t coming_bytes) noexcept;
  // Any group that has more than it may.
  Group* over_limit() noexcept;
  size_t group_count() const { return groups_.size(); }

 private:
  struct Account {
    uint64_t bytes = 0;
    std::vector<uint32_t> groups;
  };
  using Accounts = std::unordered_map<uint64_t, Account>;  // of namespaces that have bytes, or limits

  Accounts accounts_;
  std::vector<Group> groups_;
};

}  // namespace kvstore
