// Namespaces by small numbers, and how much the directory has of each. A namespace is known while it has
// entries. Not thread-safe: the owner locks.
#pragma once

#include <cassert>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "protocol/keys.hpp"

namespace kvstore {

struct Usage {
  uint64_t entries = 0;
  uint64_t bytes = 0;
  void add(uint32_t length) { ++entries, bytes += length; }
  void remove(uint32_t length) {
    assert(entries > 0 && bytes >= length);
    --entries, bytes -= length;
  }
};

class NamespaceAccounts {
 public:
  // The number of a namespace, which stays its own until `unhold` at least. std::bad_alloc.
  uint32_t hold(const NamespaceId& id) {
    const auto found = number_of_.find(id);
    const uint32_t number = found != number_of_.end() ? found->second : create(id);
    ++accounts_[number].holds;
    return number;
  }
  void unhold(uint32_t number) {
    --accounts_[number].holds;
    release(number);
  }
  void add(uint32_t number, uint32_t length) { accounts_[number].usage.add(length); }
  void remove(uint32_t number, uint32_t length) {
    accounts_[number].usage.remove(length);
    release(number);
  }

  const NamespaceId& id(uint32_t number) const { return accounts_[number].id; }
  Usage usage(const NamespaceId& id) const {
    const auto found = number_of_.find(id);
    return found != number_of_.end() ? accounts_[found->second].usage : Usage{};
  }
  std::vector<std::pair<NamespaceId, Usage>> all() const {
    std::vector<std::pair<NamespaceId, Usage>> out;
    out.reserve(number_of_.size());
    for (const auto& [id, number] : number_of_) out.emplace_back(id, accounts_[number].usage);
    return out;
  }
  uint64_t memory_bytes() const { return accounts_.capacity() * sizeof(Account); }

 private:
  struct Account {
    NamespaceId id{};
    uint32_t holds = 0;
    Usage usage;
  };

  uint32_t create(const NamespaceId& id) {
    if (free_.empty()) {
      accounts_.emplace_back();
      free_.reserve(accounts_.capacity());  // so that releasing one can't fail
      free_.push_back(static_cast<uint32_t>(accounts_.size() - 1));
    }
    const uint32_t number = free_.back();
    number_of_.emplace(id, number);
    free_.pop_back();
    accounts_[number] = Account{id, 0, {}};
    return number;
  }
  void release(uint32_t number) {
    const Account& account = accounts_[number];
    if (account.usage.entries != 0 || account.holds != 0) return;
    number_of_.erase(account.id);
    free_.push_back(number);
  }

  std::vector<Account> accounts_;
  std::vector<uint32_t> free_;
  std::map<NamespaceId, uint32_t> number_of_;
};

}  // namespace kvstore
