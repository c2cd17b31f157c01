// Life, namespaces, inventory and statistics; the batches are in segment_store_batches.cpp, room for them is made in
// segment_store_space.cpp.
#include "segment/segment_store.hpp"

#include <algorithm>
#include <stdexcept>

namespace kvstore {
namespace {

constexpr uint32_t kListedSlots = 4096;  // slots looked at for an inventory in one critical section
// Free ahead of need: enough for the runs of some puts on their way, too little to be missed.
constexpr uint64_t kFreeAheadShare = 512;
constexpr uint64_t kFreeAheadMax = 32ull << 20;
// The first chunk of slot headers fills the map up to here.
constexpr uint64_t kFirstChunkEnd = SlotTable::kChunkBytesMax;

const SegmentStoreOptions& validated(const SegmentStoreOptions& o) {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument(what); };
  if (o.capacity_bytes < ExtentAllocator::kUnitBytes)
    refuse("capacity_bytes is " + std::to_string(o.capacity_bytes) + ", at least " +
           std::to_string(ExtentAllocator::kUnitBytes) + " are needed");
  if (o.free_ahead_bytes != SegmentStoreOptions::kFreeAheadByCapacity &&
      o.free_ahead_bytes > o.capacity_bytes / 2)
    refuse("free_ahead_bytes is " + std::to_string(o.free_ahead_bytes) +
           ", at most half of capacity_bytes may be kept free");
  if (!(o.pinned_fraction_max >= 0 && o.pinned_fraction_max <= 1))
    refuse("pinned_fraction_max must be in [0, 1]");
  for (const auto& [name, value] :
       {std::pair("retained_fraction_max", o.retained_fraction_max),
        std::pair("retained_namespace_fraction_max", o.retained_namespace_fraction_max)})
    if (!(value >= 0 && value <= 1)) refuse(std::string(name) + " must be in [0, 1]");
  if (!(o.budgets.session_share_max > 0 && o.budgets.session_share_max <= 1))
    refuse("session_share_max must be in (0, 1]");
  if (o.journal_entries_max == 0) refuse("journal_entries_max must be at least 1");
  make_eviction_policy(o.eviction_policy, 1);  // names the known ones when this is none of them
  return o;
}

uint64_t free_ahead_of(const SegmentStoreOptions& o) {
  if (o.free_ahead_bytes != SegmentStoreOptions::kFreeAheadByCapacity) return o.free_ahead_bytes;
  return std::min(o.capacity_bytes / kFreeAheadShare, kFreeAheadMax);
}

KeptPoolOptions kept_pool_options(const SegmentStoreOptions& o) {
  KeptPoolOptions options;
  options.pool = o.pool;
  options.new_pool_id = o.pool_id;
  options.segment_id = o.segment_id;
  options.capacity_bytes = o.capacity_bytes;
  options.empty = o.empty_pool;
  return options;
}

uint64_t share_of(const SegmentStoreOptions& o, double fraction) {
  return static_cast<uint64_t>(fraction * static_cast<double>(o.capacity_bytes));
}

ObjectTable::Options table_options(const SegmentStoreOptions& o, const PoolLayout& layout, KeptPool& pool,
                                   Journal& journal, Budgets& budgets,
                                   std::function<bool(const Fingerprint&, const NamespaceId&)> stays) {
  ObjectTable::Options options;
  options.first_chunk_bytes = kFirstChunkEnd - SlotTable::kFirstChunkOffset;
  options.data_offset = layout.data_offset;
  options.capacity_bytes = o.capacity_bytes;
  options.eviction_policy = o.eviction_policy;
  options.pinned_bytes_max = budgets.pinned_bytes.limit();
  options.owner_pinned_bytes_max = budgets.pinned_bytes.session_limit();
  options.held_bytes = &budgets.held_bytes;
  options.batch_bytes_max = budgets.writing_bytes.session_limit();
  options.batches_bytes_max = budgets.writing_bytes.limit();
  options.retention = {share_of(o, o.retained_fraction_max), share_of(o, o.retained_namespace_fraction_max)};
  options.kept = pool.warm();
  options.stays = std::move(stays);
  if (pool.ring() != nullptr)
    options.on_removal = [&journal](const JournalEntry& entry) { journal.foretell(entry); };
  return options;
}

}  // namespace

SegmentStore::SegmentStore(const SegmentStoreOptions& options)
    : options_(validated(options)),
      free_ahead_bytes_(free_ahead_of(options)),
      layout_(pool_layout(options.capacity_bytes, kFirstChunkEnd / sizeof(SlotHeader), sizeof(SlotHeader))),
      pool_(layout_, kept_pool_options(options), options.progress.get()),
      journal_(options.journal_entries_max, pool_.ring(), pool_.journal()),
      budgets_(options.budgets, options.capacity_bytes, share_of(options, options.pinned_fraction_max)),
      objects_(pool_.memory().base(), table_options(options, layout_, pool_, journal_, budgets_,
                                                    [this](const Fingerprint& fp, const NamespaceId& ns) {
                                                      return disk_ != nullptr && !retired_.has(ns) &&
                                                             disk_->stays(fp);
                                                    })),
      shards_(objects_.shards()),
      retired_(objects_.retired()) {
  take_over();
  open_disk();
  evictor_ = std::thread([this] { run_evictor(); });
}

void SegmentStore::take_over() {
  if (!pool_.warm()) {
    content_.fresh_reason = pool_.fresh_reason();
    pool_.formatted();
    return;
  }
  const AdoptionOptions adoption{layout_.data_offset, options_.capacity_bytes,
                                 kFirstChunkEnd - SlotTable::kFirstChunkOffset, options_.verify_pool,
                                 options_.progress.get()};
  const MutexLock lock(mutex_);
  content_ = adopt_pool(pool_, objects_, journal_, adoption);
  held_back_.store(true);
}

void SegmentStore::open_disk() {
  if (options_.tell_all) journal_.lose();
  if (options_.disk.path.empty()) return;
  DiskTierOptions disk = options_.disk;
  disk.segment_id = options_.segment_id;
  disk.empty |= options_.empty_pool;
  disk_ = std::make_unique<DiskTier>(disk, static_cast<DiskTierHooks&>(*this));
  // What it has found, and what it has lost, the pool's journal knows nothing of.
  if (!options_.tell_all) journal_.lose();
  if (disk_->recovered_pages() > 0) held_back_.store(true);
  disk_->start();
}

SegmentStore::~SegmentStore() { close(); }

void SegmentStore::close() {
  if (!owner_.is_here()) return;
  {
    const MutexLock lock(mutex_);
    closed_.store(true);
  }
  evict_wanted_.notify_all();
  interrupt();
  const MutexLock joining(join_mutex_);  // of several that close it one joins, and none returns before
  if (evictor_.joinable()) evictor_.join();
  if (disk_ != nullptr) disk_->close();
  pool_.memory().let_go();
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

uint32_t SegmentStore::wire_slots_end() const {
  return static_cast<uint32_t>(std::min<uint64_t>(layout_.map_bytes / sizeof(SlotHeader), kNoSlot));
}

std::vector<NamespaceId> SegmentStore::namespaces() {
  std::vector<NamespaceId> all;
  {
    const MutexLock lock(mutex_);
    all = objects_.namespaces().populated();
  }
  if (disk_ != nullptr)
    for (const NamespaceId& ns : disk_->namespaces())
      if (std::find(all.begin(), all.end(), ns) == all.end()) all.push_back(ns);
  return all;
}

void SegmentStore::set_namespaces(const std::vector<NamespaceId>& current,
                                  const std::vector<NamespaceId>& known) {
  const MutexLock lock(mutex_);
  objects_.set_current(current, known);
  held_back_.store(false);
}

void SegmentStore::retire_namespace(const NamespaceId& ns) {
  const MutexLock lock(mutex_);
  objects_.retire(ns);
}

void SegmentStore::set_quotas(const std::vector<QuotaLimit>& limits) {
  const MutexLock lock(mutex_);
  objects_.quotas().set(limits);
  if (wants_eviction()) evict_wanted_.notify_one();
}

SegmentStore::Inventory SegmentStore::begin_inventory() {
  const MutexLock lock(mutex_);  // every object that can be found now has its number
  Inventory inventory;
  inventory.last_seq = journal_.skip_to_end();
  inventory.end_slot = objects_.slots_end();
  return inventory;
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
  const bool done = inventory.next_slot >= inventory.end_slot && list_disk(inventory, entries_max, entries);
  // One namespace after the other, so that a slice is few groups.
  const auto by_namespace = [](const JournalEntry& a, const JournalEntry& b) { return a.ns < b.ns; };
  if (!std::is_sorted(entries.begin(), entries.end(), by_namespace))
    std::stable_sort(entries.begin(), entries.end(), by_namespace);
  write_journal_groups(entries.data(), entries.size(), groups);
  return done;
}

SegmentStore::Usage SegmentStore::usage() {
  shards_.expire_pins(now_ms());
  const MutexLock lock(mutex_);
  return {objects_.used_bytes(),
          objects_.object_count(),
          shards_.pinned_bytes(),
          objects_.quarantined_count(),
          digest_mismatches_.load(std::memory_order_relaxed),
          evicted_objects_.load(std::memory_order_relaxed)};
}

std::array<Budget::Usage, Budgets::kCount> SegmentStore::budget_usage() {
  auto all = budgets_.usage();
  shards_.expire_pins(now_ms());
  all[Budgets::kPinnedAt].used = shards_.pinned_bytes();
  return all;
}

std::map<std::string, uint64_t> SegmentStore::stats() {
  std::map<std::string, uint64_t> out;
  shards_.expire_pins(now_ms());
  {
    const MutexLock lock(mutex_);
    out["capacity_bytes"] = objects_.capacity_bytes();
    out["used_bytes"] = objects_.used_bytes();
    out["object_count"] = objects_.object_count();
    out["pinned_bytes"] = shards_.pinned_bytes();
    const Retention::Totals& kept = objects_.retention(now_ms()).totals();
    out["retained_bytes"] = kept.retained_bytes;
    out["retained_objects"] = kept.retained_objects;
    out["demoted_objects"] = kept.demoted_objects;
    out["retentions_refused"] = kept.over_budget;
    out["retentions_expired"] = kept.expired;
    out["demotions_ignored"] = kept.demotions_ignored;
    out["demotions_contradicted"] = kept.demotions_contradicted;
    out["slots"] = objects_.slot_count();
    out["slots_free"] = objects_.slots_free();
    out["quarantined_slots"] = objects_.quarantined_count();
    out["damaged_slots"] = objects_.damaged_count();
    out["quota_limits"] = objects_.quotas().group_count();
    out["bookkeeping_errors"] = objects_.misuse_count();
  }
  for (const Budget::Usage& budget : budget_usage()) {
    const std::string name = std::string("budget_") + budget.name;
    out[name + "_used"] = budget.used;
    out[name + "_limit"] = budget.limit;
    out[name + "_refused"] = budget.refused;
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
  count("dropped_objects", dropped_objects_);
  count("evicted_bytes", evicted_bytes_);
  count("digest_mismatches", digest_mismatches_);
  count("conflicts", conflicts_);
  count("quota_evicted_objects", quota_evicted_objects_);
  count("quota_evicted_bytes", quota_evicted_bytes_);
  count("quota_refused", quota_refused_);
  count("no_space", no_space_);
  count("not_committed", not_committed_);
  count("evictor_errors", evictor_errors_);
  count("copied_out", copied_out_);
  count("copied_out_bytes", copied_out_bytes_);
  count("copied_in", copied_in_);
  count("copied_in_bytes", copied_in_bytes_);
  if (disk_ != nullptr) {
    count("disk_promoted_pages", promoted_);
    count("evicted_to_disk_objects", evicted_to_disk_);
    disk_->stats(out);
  }
  return out;
}

}  // namespace kvstore
