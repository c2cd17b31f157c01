// Life, eviction, namespaces, inventory and statistics; the batches are in segment_store_batches.cpp.
#include "segment/segment_store.hpp"

#include <algorithm>
#include <stdexcept>

namespace kvstore {
namespace {

constexpr uint64_t kSlotCountMin = 1024;
constexpr uint64_t kSlotCountMax = 1ull << 31;
constexpr uint32_t kEvictSteps = 1024;  // objects looked at in one critical section: well under a millisecond
constexpr uint32_t kListedSlots = 4096;  // slots looked at for an inventory in one critical section
constexpr auto kEvictorPause = std::chrono::milliseconds(20);  // after a round that could free nothing

const SegmentStoreOptions& validated(const SegmentStoreOptions& o) {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument(what); };
  if (o.capacity_bytes < ExtentAllocator::kUnitBytes)
    refuse("capacity_bytes is " + std::to_string(o.capacity_bytes) + ", at least 512 are needed");
  if (o.object_bytes_min == 0) refuse("object_bytes_min must be at least 1");
  if (!(o.low_watermark > 0 && o.low_watermark <= o.high_watermark && o.high_watermark <= 1))
    refuse("watermarks must be 0 < low_watermark <= high_watermark <= 1, not " +
           std::to_string(o.low_watermark) + " and " + std::to_string(o.high_watermark));
  if (!(o.pinned_fraction_max >= 0 && o.pinned_fraction_max <= 1))
    refuse("pinned_fraction_max must be in [0, 1]");
  if (o.journal_entries_max == 0) refuse("journal_entries_max must be at least 1");
  if (o.capacity_bytes / o.object_bytes_min > kSlotCountMax)
    refuse("capacity_bytes / object_bytes_min is over the limit of 2^31 slots: raise object_bytes_min");
  make_eviction_policy(o.eviction_policy, 1);  // names the known ones when this is none of them
  return o;
}

uint32_t slot_count_of(const SegmentStoreOptions& o) {
  return static_cast<uint32_t>(std::max(kSlotCountMin, o.capacity_bytes / o.object_bytes_min));
}

}  // namespace

SegmentStore::SegmentStore(const SegmentStoreOptions& options)
    : options_(validated(options)),
      slot_count_(slot_count_of(options)),
      layout_(pool_layout(options.capacity_bytes, slot_count_, sizeof(SlotHeader))),
      pool_(layout_, options.pool, options.progress.get()),
      journal_(options.journal_entries_max),
      objects_(
          pool_.base(), layout_.data_offset, options.capacity_bytes, slot_count_, options.eviction_policy,
          static_cast<uint64_t>(options.pinned_fraction_max * static_cast<double>(options.capacity_bytes))) {
  evictor_ = std::thread([this] { run_evictor(); });
}

SegmentStore::~SegmentStore() { close(); }

void SegmentStore::close() {
  if (!owner_.is_here()) return;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  evict_wanted_.notify_all();
  interrupt();
  const MutexLock joining(join_mutex_);  // of several that close it one joins, and none returns before
  if (evictor_.joinable()) evictor_.join();
  pool_.let_go();
}

void SegmentStore::interrupt() {
  {
    const MutexLock lock(mutex_);
  }  // a waiter between its check and its sleep must not miss this
  space_freed_.notify_all();
  journal_.interrupt();
}

uint64_t SegmentStore::now_ms() {
  const auto since_boot = Clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(since_boot).count()) + 1;
}

uint64_t SegmentStore::evict_step(uint64_t wanted_bytes) {
  std::vector<JournalEntry> removed;
  const uint64_t freed = objects_.evict(wanted_bytes, kEvictSteps, now_ms(), removed);
  if (!removed.empty()) journal_.append(removed);
  evicted_objects_.fetch_add(removed.size(), std::memory_order_relaxed);
  evicted_bytes_.fetch_add(freed, std::memory_order_relaxed);
  if (freed > 0 && space_waiters_ > 0) space_freed_.notify_all();
  return freed;
}

uint64_t SegmentStore::evict_locked(uint64_t wanted_bytes) {
  uint64_t freed = 0;
  // One look at each object is enough: what was pinned a moment ago still is.
  for (uint64_t looked_at = 0; freed < wanted_bytes && looked_at <= objects_.object_count();
       looked_at += kEvictSteps) {
    freed += evict_step(wanted_bytes - freed);
    if (freed < wanted_bytes) {
      mutex_.unlock();
      mutex_.lock();
    }
  }
  return freed;
}

uint64_t SegmentStore::evict_bytes(uint64_t wanted_bytes) {
  const MutexLock lock(mutex_);
  return evict_locked(wanted_bytes);
}

void SegmentStore::run_evictor() {
  MutexLock lock(mutex_);
  while (!closed_) {
    while (!closed_ && !objects_.is_fuller_than(options_.high_watermark)) evict_wanted_.wait(mutex_);
    bool progress = true;
    while (!closed_ && progress && objects_.is_fuller_than(options_.low_watermark)) {
      try {
        // A little at a time, so that writers and readers get the lock in between.
        progress =
            evict_step(std::max<uint64_t>(objects_.capacity_bytes() / 256, ExtentAllocator::kUnitBytes)) > 0;
      } catch (const std::exception&) {
        evictor_errors_.fetch_add(1, std::memory_order_relaxed);
        progress = false;
      }
      lock.unlock();
      lock.lock();
    }
    if (closed_ || progress) continue;
    const auto pause_end = Clock::now() + kEvictorPause;
    while (!closed_ && evict_wanted_.wait_until(mutex_, pause_end) == std::cv_status::no_timeout) {
    }
  }
}

std::vector<NamespaceId> SegmentStore::namespaces() {
  const MutexLock lock(mutex_);
  return objects_.namespaces().populated();
}

void SegmentStore::set_namespaces(const std::vector<NamespaceId>& current,
                                  const std::vector<NamespaceId>& known) {
  const MutexLock lock(mutex_);
  objects_.set_current(current, known);
}

void SegmentStore::retire_namespace(const NamespaceId& ns) {
  const MutexLock lock(mutex_);
  objects_.retire(ns);
}

SegmentStore::Inventory SegmentStore::begin_inventory() {
  const MutexLock lock(mutex_);  // every object that can be found now has its number
  return {journal_.skip_to_end(), 0, objects_.slots_used_end()};
}

bool SegmentStore::inventory_slice(Inventory& inventory, size_t entries_max, std::vector<uint8_t>& groups) {
  std::vector<JournalEntry> entries;
  entries.reserve(std::min<size_t>(entries_max, inventory.end_slot - inventory.next_slot));
  while (entries.size() < entries_max && inventory.next_slot < inventory.end_slot) {
    const uint32_t end =
        inventory.next_slot + std::min(kListedSlots, inventory.end_slot - inventory.next_slot);
    const MutexLock lock(mutex_);
    inventory.next_slot = objects_.list(inventory.next_slot, end, entries_max, entries);
  }
  // One namespace after the other, so that a slice is few groups.
  const auto by_namespace = [](const JournalEntry& a, const JournalEntry& b) { return a.ns < b.ns; };
  if (!std::is_sorted(entries.begin(), entries.end(), by_namespace))
    std::stable_sort(entries.begin(), entries.end(), by_namespace);
  write_journal_groups(entries.data(), entries.size(), groups);
  return inventory.next_slot >= inventory.end_slot;
}

SegmentStore::Usage SegmentStore::usage() {
  const MutexLock lock(mutex_);
  return {objects_.used_bytes(),
          objects_.object_count(),
          objects_.pinned_bytes(now_ms()),
          objects_.quarantined_count(),
          digest_mismatches_.load(std::memory_order_relaxed),
          evicted_objects_.load(std::memory_order_relaxed)};
}

std::map<std::string, uint64_t> SegmentStore::stats() {
  std::map<std::string, uint64_t> out;
  {
    const MutexLock lock(mutex_);
    out["capacity_bytes"] = objects_.capacity_bytes();
    out["used_bytes"] = objects_.used_bytes();
    out["object_count"] = objects_.object_count();
    out["pinned_bytes"] = objects_.pinned_bytes(now_ms());
    out["slots_free"] = objects_.slots_free();
    out["quarantined_slots"] = objects_.quarantined_count();
    out["damaged_slots"] = objects_.damaged_count();
    out["bookkeeping_errors"] = objects_.misuse_count();
  }
  out["journal_backlog"] = journal_.backlog();
  out["journal_overflows"] = journal_.overflows();
  const auto count = [&out](const char* name, const std::atomic<uint64_t>& value) {
    out[name] = value.load(std::memory_order_relaxed);
  };
  count("puts", puts_);
  count("put_bytes", put_bytes_);
  count("gets", gets_);
  count("get_bytes", get_bytes_);
  count("misses", misses_);
  count("exists_hits", exists_hits_);
  count("evicted_objects", evicted_objects_);
  count("evicted_bytes", evicted_bytes_);
  count("digest_mismatches", digest_mismatches_);
  count("conflicts", conflicts_);
  count("no_space", no_space_);
  count("not_committed", not_committed_);
  count("evictor_errors", evictor_errors_);
  return out;
}

}  // namespace kvstore
