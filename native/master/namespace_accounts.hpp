// Namespaces by small numbers, and how much the directory has of each. A namespace is known while it has
// entries. Not thread-safe: the owner locks.
#pragma once

#include <cassert>
#include <cstdint>
#include <map>
#include <unordered_map>
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
  // What comes from a segment has to be expected first, which allocates.
  void expect(uint32_t number, uint32_t segment) { accounts_[number].by_segment.try_emplace(segment); }
  void add(uint32_t number, uint32_t segment, uint32_t length) {
    Account& account = accounts_[number];
    account.usage.add(length);
    account.by_segment.find(segment)->second.add(length);
  }
  void remove(uint32_t number, uint32_t segment, uint32_t length) {
    Account& account = accounts_[number];
    account.usage.remove(length);
    const auto part = account.by_segment.find(segment);
    part->second.remove(length);
    if (part->second.entries == 0 && account.holds == 0) account.by_segment.erase(part);
    release(number);
  }

  const NamespaceId& id(uint32_t number) const { return accounts_[number].id; }
  Usage usage(const NamespaceId& id) const {
    const auto found = number_of_.find(id);
    return found != number_of_.end() ? accounts_[found->second].usage : Usage{};
  }
  // By segment, those that have nothing of it left out.
  std::vector<std::pair<uint32_t, Usage>> parts(const NamespaceId& id) const {
    std::vector<std::pair<uint32_t, Usage>> out;
    if (const auto found = number_of_.find(id); found != number_of_.end())
      for (const auto& [segment, usage] : accounts_[found->second].by_segment)
        if (usage.entries > 0) out.emplace_back(segment, usage);
    return out;
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
    std::unordered_map<uint32_t, Usage> by_segment;
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
    accounts_[number] = Account{id, 0, {}, {}};
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
