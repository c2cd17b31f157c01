#include "segment/namespace_table.hpp"

namespace kvstore {

bool RetiredNamespaces::has(uint64_t ns) const {
  const MutexLock lock(mutex_);
  return retired_.count(ns) != 0;
}

bool RetiredNamespaces::add(uint64_t ns) {
  const MutexLock lock(mutex_);
  if (!retired_.insert(ns).second) return false;
  order_.push_back(ns);
  while (order_.size() > kRetiredMax) {
    retired_.erase(order_.front());
    order_.pop_front();
  }
  return true;
}

void RetiredNamespaces::restore(const std::unordered_set<uint64_t>& current) {
  const MutexLock lock(mutex_);
  bool restored = false;
  for (const uint64_t ns : current) restored |= retired_.erase(ns) != 0;
  if (!restored) return;
  std::deque<uint64_t> order;  // their entries would forget a later retirement too early
  for (const uint64_t ns : order_)
    if (retired_.count(ns) != 0) order.push_back(ns);
  order_.swap(order);
}

void NamespaceTable::retire(const NamespaceId& ns) { retire_number(as_number(ns)); }

void NamespaceTable::retire_number(uint64_t ns) {
  if (retired_.add(ns) && lists_.count(ns) != 0) to_evict_.push_back(ns);
}

std::vector<NamespaceId> NamespaceTable::populated() const {
  std::vector<NamespaceId> out;
  for (const auto& [number, list] : lists_) {
    NamespaceId ns;
    std::memcpy(ns.data(), &number, sizeof(number));
    out.push_back(ns);
  }
  return out;
}

void NamespaceTable::set_current(const std::vector<NamespaceId>& current,
                                 const std::vector<NamespaceId>& known) {
  std::unordered_set<uint64_t> keep;
  for (const NamespaceId& ns : current) keep.insert(as_number(ns));
  retired_.restore(keep);
  for (const NamespaceId& ns : known)
    if (keep.count(as_number(ns)) == 0) retire_number(as_number(ns));
}

void NamespaceTable::append(List& list, uint32_t slot) {
  links_[slot] = {list.tail, kNoSlot};
  (list.tail == kNoSlot ? list.head : links_[list.tail].next) = slot;
  list.tail = slot;
}

void NamespaceTable::unlink(List& list, uint32_t slot) {
  const Link link = links_[slot];
  (link.previous == kNoSlot ? list.head : links_[link.previous].next) = link.next;
  (link.next == kNoSlot ? list.tail : links_[link.next].previous) = link.previous;
  links_[slot] = Link{};
}

void NamespaceTable::add(uint32_t slot, const NamespaceId& ns) { append(lists_[as_number(ns)], slot); }

bool NamespaceTable::remove(uint32_t slot, const NamespaceId& ns) noexcept {
  const auto found = lists_.find(as_number(ns));
  if (found == lists_.end()) return false;
  unlink(found->second, slot);
  if (found->second.head == kNoSlot) lists_.erase(found);
  return true;
}

void NamespaceTable::touch(uint32_t slot, const NamespaceId& ns) noexcept {
  const auto found = lists_.find(as_number(ns));
  if (found == lists_.end() || found->second.tail == slot) return;
  unlink(found->second, slot);
  append(found->second, slot);
}

uint32_t NamespaceTable::retired_slot() {
  while (!to_evict_.empty()) {
    const uint64_t ns = to_evict_.back();
    const auto list = lists_.find(ns);
    if (list != lists_.end() && retired_.has(ns)) return list->second.head;
    to_evict_.pop_back();  // emptied, or current again
  }
  return kNoSlot;
}

}  // namespace kvstore
