// Which sealed slots belong to which namespace, and which namespaces have been retired. Retiring is O(1)
// however many objects there are: their slots are handed to eviction one by one afterwards.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.hpp"
#include "protocol/keys.hpp"
#include "segment/by_slot.hpp"

namespace kvstore {

inline uint64_t as_number(const NamespaceId& ns) {
  uint64_t n;
  std::memcpy(&n, ns.data(), sizeof(n));
  return n;
}

// Ids that are not to be served any more. Thread-safe: readers ask without the lock of what they read.
class RetiredNamespaces {
 public:
  // So many ids are remembered, the newest ones. An id that was never retired is current.
  static constexpr size_t kRetiredMax = 65536;

  bool has(const NamespaceId& ns) const { return has(as_number(ns)); }
  bool has(uint64_t ns) const;
  // False: it was retired already.
  bool add(uint64_t ns);
  void restore(const std::unordered_set<uint64_t>& current);

 private:
  mutable Mutex mutex_;
  std::unordered_set<uint64_t> retired_ GUARDED_BY(mutex_);
  std::deque<uint64_t> order_ GUARDED_BY(mutex_);  // oldest first; each id once
};

// Not thread-safe, but for what it says of retired(): the owner locks.
class NamespaceTable {
 public:
  explicit NamespaceTable(uint32_t chunks_max) : links_(chunks_max) {}

  // Slots come and go by chunks; those that go are in no namespace.
  void add_chunk(uint32_t chunk, uint32_t places) { links_.add(chunk, places); }
  void remove_chunk(uint32_t chunk) noexcept { links_.remove(chunk); }

  const RetiredNamespaces& retired() const { return retired_; }
  bool is_retired(const NamespaceId& ns) const { return retired_.has(ns); }
  void retire(const NamespaceId& ns);
  // Those of `current` are current again; those of `known` that are not among them are retired.
  void set_current(const std::vector<NamespaceId>& current, const std::vector<NamespaceId>& known);
  // Namespaces that hold objects.
  std::vector<NamespaceId> populated() const;

  void add(uint32_t slot, const NamespaceId& ns);
  // False, and nothing done, when the namespace holds no slot: the caller keeps another account than the table.
  [[nodiscard]] bool remove(uint32_t slot, const NamespaceId& ns) noexcept;
  // The slot of the namespace that was added or touched longest ago; kNoSlot: it has none.
  uint32_t first(const NamespaceId& ns) const noexcept {
    const auto found = lists_.find(as_number(ns));
    return found != lists_.end() ? found->second.head : kNoSlot;
  }
  // A slot of the namespace, as if it was added just now.
  void touch(uint32_t slot, const NamespaceId& ns) noexcept;
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
  void append(List& list, uint32_t slot);
  void unlink(List& list, uint32_t slot);
  void retire_number(uint64_t ns);

  BySlot<Link> links_;
  std::unordered_map<uint64_t, List> lists_;  // namespaces that hold objects
  RetiredNamespaces retired_;
  std::vector<uint64_t> to_evict_;  // retired ones that held objects when they were retired
};

}  // namespace kvstore
