// Which sealed slots belong to which namespace, and which namespaces have been retired. Retiring is O(1)
// however many objects there are: their slots are handed to eviction one by one afterwards. Not thread-safe:
// the owner locks.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "protocol/keys.hpp"
#include "segment/slot_table.hpp"

namespace kvstore {

class NamespaceTable {
 public:
  // So many retired ids are remembered, the newest ones. An id that was never retired is current.
  static constexpr size_t kRetiredMax = 65536;

  explicit NamespaceTable(uint32_t slot_count) : links_(slot_count) {}

  bool is_retired(const NamespaceId& ns) const { return retired_.count(as_number(ns)) != 0; }
  void retire(const NamespaceId& ns);
  // Those of `current` are current again; those of `known` that are not among them are retired.
  void set_current(const std::vector<NamespaceId>& current, const std::vector<NamespaceId>& known);
  // Namespaces that hold objects.
  std::vector<NamespaceId> populated() const;

  void add(uint32_t slot, const NamespaceId& ns);
  // False, and nothing done, when the namespace holds no slot: the caller keeps another account than the table.
  [[nodiscard]] bool remove(uint32_t slot, const NamespaceId& ns) noexcept;
  // A slot of a retired namespace, or kNoSlot when none is left.
  uint32_t retired_slot();

 private:
  struct List {
    uint32_t head = kNoSlot;
    uint32_t tail = kNoSlot;
  };
  struct Link {
    uint32_t previous = kNoSlot;
    uint32_t next = kNoSlot;
  };
  static uint64_t as_number(const NamespaceId& ns) {
    uint64_t n;
    std::memcpy(&n, ns.data(), sizeof(n));
    return n;
  }
  void append(List& list, uint32_t slot);
  void unlink(List& list, uint32_t slot);
  void retire_number(uint64_t ns);

  std::vector<Link> links_;                   // by slot
  std::unordered_map<uint64_t, List> lists_;  // namespaces that hold objects
  std::unordered_set<uint64_t> retired_;
  std::deque<uint64_t> retired_order_;  // oldest first; may name ids that were made current again
  std::vector<uint64_t> to_evict_;      // retired ones that held objects when they were retired
};

}  // namespace kvstore
