// The store of one segment: pool, objects, eviction and journal. Writers go through one mutex that is taken once a
// batch, never while bytes are copied or hashed; readers take the mutex of a shard of the objects, and what they used
// is ranked by whoever has the main mutex next. Thread-safe. Objects handed out by it (reads, writes) are given back to
// it before it is destroyed; the data server holds a shared_ptr for that.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/process_owner.hpp"
#include "protocol/fetch_codec.hpp"
#include "protocol/put_request.hpp"
#include "protocol/wire.hpp"
#include "segment/budgets.hpp"
#include "segment/disk/disk_tier.hpp"
#include "segment/journal.hpp"
#include "segment/kept_pool.hpp"
#include "segment/object_table.hpp"
#include "segment/pool_adoption.hpp"
#include "segment/use_queue.hpp"

namespace kvstore {

struct SegmentStoreOptions {
  uint64_t capacity_bytes = 0;
  PoolId pool_id{};  // of a new pool; one that is kept has its own
  SegmentId segment_id{};
  bool empty_pool = false;  // begin anew, whatever an earlier process has left
  bool verify_pool = true;  // compare the bytes of what it has left with their digests
  // What the evictor keeps free ahead of need; kFreeAheadByCapacity: little.
  static constexpr uint64_t kFreeAheadByCapacity = UINT64_MAX;
  uint64_t free_ahead_bytes = kFreeAheadByCapacity;
  std::string eviction_policy = "adaptive";
  double pinned_fraction_max = 0.5;
  double retained_fraction_max = 0.10;            // of the pool, that writers may have retained
  double retained_namespace_fraction_max = 0.05;  // and those of one namespace
  uint64_t journal_entries_max = 4194304;
  PoolOptions pool;
  BudgetLimits budgets;
  DiskTierOptions disk;
  bool tell_all = false;  // the directory may believe more of this segment than the pool's journal knows
  std::shared_ptr<PoolProgress> progress;  // null: nobody watches
};

// One entry of a read batch. `slot` is held (its bytes stay) while the status is OK, until release_reads.
struct ReadEntry {
  wire::Status status = wire::Status::kMiss;
  uint8_t digest_alg = 0;
  uint32_t slot = kNoSlot;
  uint32_t wire_slot = kNoSlot;  // the number by which other processes find its header
  uint32_t length = 0;
  uint32_t digest = 0;
  uint64_t offset = 0;  // in the map
  uint64_t generation = 0;
  const uint8_t* data = nullptr;
  std::shared_ptr<DiskBuffer> from_disk;  // has the bytes, where no slot does
};

// One entry of a write batch. While `slot` is set its memory belongs to the writer alone.
struct WriteEntry {
  wire::Status status = wire::Status::kInternal;
  uint32_t slot = kNoSlot;
  uint8_t* data = nullptr;
  uint32_t digest = 0;          // the writer fills it in: CRC-32C of what it wrote
  bool digest_refused = false;  // the writer found that it differs from the digest it was promised
};

class SegmentStore;

// The puts of one connection that are one batch to its client: nothing that they have brought, or were told is there,
// is evicted for any put before the batch is over. Ends with this. Not thread-safe, and outlived by the store.
class PutBatch {
 public:
  explicit PutBatch(SegmentStore& store) : store_(store) {}
  ~PutBatch() { end(); }
  PutBatch(const PutBatch&) = delete;
  PutBatch& operator=(const PutBatch&) = delete;

  // A put of it begins; begins another batch where this one is over.
  void begin_put();
  // The put is over; what it brought is durable after the journal number `seq`.
  void end_put(uint64_t seq) noexcept;
  // The batch is over: its commit has been waited for.
  void end() noexcept;
  // Whether this connection's batches are known to end with a commit.
  bool is_committed_later() const { return is_committed_later_; }
  void expect_commit() { is_committed_later_ = true; }
  uint32_t id() const { return id_; }

 private:
  SegmentStore& store_;
  uint32_t id_ = 0;
  bool is_committed_later_ = false;
  // What could not be had for it: as long as nothing got free since, nothing that large can be had.
  friend class SegmentStore;
  uint64_t refused_bytes_ = UINT64_MAX;
  uint64_t refused_at_ = 0;  // the store's count of what got free
  // Until then: a pin that runs out frees nothing by itself, and is not counted.
  std::chrono::steady_clock::time_point refused_until_ = std::chrono::steady_clock::time_point::min();
  std::chrono::steady_clock::time_point patient_until_ = std::chrono::steady_clock::time_point::min();
};

class SegmentStore final : private DiskTierHooks {
 public:
  using Clock = std::chrono::steady_clock;
  using Statuses = std::vector<uint8_t>;  // wire::Status, one an entry

  // Throws PoolLimitError, std::system_error, or std::invalid_argument naming the bad option.
  explicit SegmentStore(const SegmentStoreOptions& options);
  ~SegmentStore() override;
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;

  // ---- batches of the data port
  // `owner`: whose share of the pin budget it is. What is over it is there, but with no promise.
  Statuses pin(const KeyBlock& block, uint32_t pin_ms, uint32_t owner = PinBudget::kNoOwner);
  // `expected_lengths`: u32 an entry (0: any), or null. Counts as a use; release_reads must follow. UNAVAILABLE: what
  // readers hold is as much as the budget allows. `has_bytes`: what the reader holds already, which is told to the
  // budget. `anyway`: the caller has taken that much of the budget himself.
  std::vector<ReadEntry> acquire_reads(const KeyBlock& block, const uint8_t* expected_lengths,
                                       uint64_t has_bytes = 0, bool anyway = false);
  void release_reads(const std::vector<ReadEntry>& reads) noexcept;
  // Entries that were a miss and are on disk become OK with bytes beside the pool, as far as they come within `wait_ms`
  // (0: as long as this segment waits at most) and before `cancelled`. What is read repeatedly is put into memory too.
  void read_from_disk(const KeyBlock& block, const uint8_t* expected_lengths, uint32_t wait_ms,
                      const std::atomic<bool>& cancelled, std::vector<ReadEntry>& reads);
  // The same for readers of the pool: what is on disk is put into memory and held. Whether there was any.
  bool bring_into_memory(const KeyBlock& block, uint32_t wait_ms, const std::atomic<bool>& cancelled,
                         uint64_t has_bytes, std::vector<ReadEntry>& reads);

  // ---- copies from segment to segment (segment_store_copies.cpp)
  // The objects of these fingerprints, held as by acquire_reads, up to `bytes_max` of them (the first whatever its length): entry
  // i of both is fingerprint i. No use for eviction. `has_bytes`: what the reader holds already.
  struct Copyable {
    std::vector<fetch_codec::FetchedObject> objects;
    std::vector<ReadEntry> reads;  // to release
  };
  Copyable acquire_copies(const fetch_codec::FetchRequest& request, uint64_t has_bytes);
  // EXISTS for those that are here, MISS for others; and the journal number after which the first are durable.
  std::pair<Statuses, uint64_t> have(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints);
  // As reserve_writes, where nothing is evicted and the free memory that the evictor keeps ahead is left alone: NO_SPACE for
  // what does not fit.
  void reserve_in_free_room(const PutRequest& put, std::vector<WriteEntry>& writes, PutBatch* batch);

  // A walk through all objects, hottest first.
  struct RankWalk {
    bool begun = false;
    uint32_t since = 0;  // ObjectTable::uses() when it began
    uint64_t rank = 0;   // of the last object that was listed, and its slot
    uint32_t slot = 0;
  };
  // Appends the next objects as ADD groups in their order, at most `entries_max`; true when none is left. What is used while the walk
  // lasts may be left out of it. The mutex is held for some tens of microseconds at a time; every call looks at all slots.
  bool hottest(RankWalk& walk, size_t entries_max, std::vector<uint8_t>& groups);
  void count_copied_in(uint64_t objects, uint64_t bytes) {
    copied_in_.fetch_add(objects, std::memory_order_relaxed);
    copied_in_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }

  // Gives each entry of [first, first + count) a slot to write, or the status that it needs none. Evicts for it, but
  // nothing of an open batch, and waits for space until the deadline, until `cancelled` is set and interrupt() called,
  // or until nobody is left who could leave any. `writes` has one entry for each of the request. `batch`: the one that
  // the put belongs to, between begin_put and end_put; null: none.
  void reserve_writes(const PutRequest& put, uint32_t first, uint32_t count, Clock::time_point deadline,
                      const std::atomic<bool>& cancelled, std::vector<WriteEntry>& writes,
                      PutBatch* batch = nullptr);
  // Seals what was written; all slots of `writes` are given up. Returns the journal number after which
  // everything in the batch (found EXISTS included) is durable.
  enum class Came : uint8_t { kByPut, kFromDisk };
  uint64_t seal_writes(const PutRequest& put, std::vector<WriteEntry>& writes, Came came = Came::kByPut);
  void abandon_writes(std::vector<WriteEntry>& writes) noexcept;

  // Somebody wants everything up to this journal number to be durable: batches that reach no further are over.
  void end_batches_up_to(uint64_t seq);

  // The second is the journal number to wait for.
  std::pair<Statuses, uint64_t> remove(const KeyBlock& block);
  // What is to become of objects when space runs short. OK, MISS, or NO_SPACE: it is here and is not retained or demoted, see
  // Retention::keep.
  Statuses keep(const KeyBlock& block, const wire::KeepWish& wish);
  // The same for those entries of a put that are here (OK, EXISTS); how many of them are not as wished.
  uint32_t keep_stored(const KeyBlock& block, const wire::KeepWish& wish, const Statuses& put);
  // Recomputes digests: OK, MISS, or DIGEST_MISMATCH (now quarantined).
  Statuses verify(const KeyBlock& block);

  // ---- housekeeping
  std::vector<NamespaceId> namespaces();
  // What an earlier process has left is served from the first call on: a namespace of it may have ended meanwhile. Until then
  // reads are misses, and writes are UNAVAILABLE.
  void set_namespaces(const std::vector<NamespaceId>& current, const std::vector<NamespaceId>& known);
  void retire_namespace(const NamespaceId& ns);
  // What groups of namespaces may have here, in place of what was set before. Whatever has more gives up its own.
  void set_quotas(const std::vector<QuotaLimit>& limits);
  uint64_t evict_bytes(uint64_t wanted_bytes);
  // What an operator wants of objects.
  struct KeepCounts {
    uint64_t kept = 0;
    uint64_t refused = 0;  // here, and not as wished
    uint64_t missing = 0;
  };
  KeepCounts keep_objects(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints,
                          const wire::KeepWish& wish);
  // All that are here now, in slices between which the store changes.
  KeepCounts keep_namespace(const NamespaceId& ns, const wire::KeepWish& wish);
  // Copies that the directory has more of than it wants go, unless they are pinned or being read. OK, MISS, or UNAVAILABLE: later.
  Statuses drop_objects(const NamespaceId& ns, const std::vector<Fingerprint>& fingerprints);
  // Of each namespace that has wishes, and what one may retain here.
  std::pair<std::vector<Retention::Account>, RetentionLimits> retention();
  // What is left of an inventory that is being taken.
  struct Inventory {
    uint64_t last_seq = 0;  // the journal number that it stands for
    uint32_t next_slot = 0;
    uint32_t end_slot = 0;
    uint32_t next_region = 0;  // of the disk tier, which follows the slots
    std::vector<JournalEntry> disk_entries;
  };
  // What was journalled so far counts as handed out; the inventory stands for it.
  Inventory begin_inventory();
  // Appends the next objects as ADD groups, at most `entries_max`; true when nothing is left. The mutex is held
  // for some tens of microseconds at a time, and the store changes between two of them.
  //
  // So an inventory is the picture of no single moment, and need not be: whatever changed after begin_inventory
  // has a journal number above last_seq and is sent after the inventory, in order. An object that came since and
  // is in a later slice is added twice; one that was in a slice and went is removed; one that went before its
  // slice is removed where it never was. An object that did not change lies in its slot all the time, and is
  // in the one slice that looks there.
  bool inventory_slice(Inventory& inventory, size_t entries_max, std::vector<uint8_t>& groups);
  Journal& journal() { return journal_; }
  Budgets& budgets() { return budgets_; }
  // The caps and what is used of them; pins included.
  std::array<Budget::Usage, Budgets::kCount> budget_usage();
  std::map<std::string, uint64_t> stats();
  // What heartbeats tell.
  struct Usage {
    uint64_t used_bytes, object_count, pinned_bytes, quarantined_slots, digest_mismatches, evicted_objects;
  };
  Usage usage();
  // Of the disk tier; zeros where there is none. `shed`: pages that it did not write or read, because it is in trouble or has
  // too much to do.
  struct DiskUsage {
    uint64_t used_bytes = 0, capacity_bytes = 0, shed = 0;
  };
  DiskUsage disk_usage();
  void count_not_committed() { not_committed_.fetch_add(1, std::memory_order_relaxed); }

  const Pool& pool() const { return pool_.memory(); }
  const PoolId& pool_id() const { return pool_.pool_id(); }
  // What it began with.
  const PoolContent& pool_content() const { return content_; }
  // The cluster that the pages belong to; all zero: none yet. Of one thread at a time.
  ClusterId cluster_id() const { return pool_.cluster_id(); }
  void set_cluster_id(const ClusterId& cluster_id) { pool_.set_cluster_id(cluster_id); }
  const SegmentStoreOptions& options() const { return options_; }
  // How many slots the map has place for: the number that other processes know a slot by is below.
  uint32_t wire_slots_end() const;

  // Wakes every waiter (for space, for an acknowledgement) so that it looks at its `cancelled` flag.
  void interrupt();
  // Stops the evictor and refuses further batches (writes: UNAVAILABLE, reads: MISS). Another store may then have
  // the pool's file: nobody may be writing to memory that was reserved. Idempotent; nothing in a
  // forked child, whose copy must not be destroyed either. The memory goes with the object, when its last user
  // is done.
  void close();

 private:
  friend class PutBatch;
  // What waits for room, and for how long.
  struct Wait {
    Clock::time_point deadline;
    const std::atomic<bool>& cancelled;
    PutBatch* batch;
    uint32_t own_writes = 0;  // slots that the request itself is writing to
    bool gave_up = false;     // everything was looked at and no time is left: what fits is all that it gets
    bool may_evict = true;
  };
  enum class Room : uint8_t { kMade, kLater, kNever };

  static uint64_t now_ms();
  // DiskTierHooks
  uint64_t copy_out(const Key& key, const Fingerprint& fp, uint8_t* to, uint64_t room,
                    DiskRecordHeader& header) override;
  void dropped(std::vector<JournalEntry> pages) noexcept override;
  // Entries of a read batch that memory misses and the disk has.
  struct Cold {
    std::vector<uint32_t> entries, lengths;
    std::vector<DiskTier::Page> pages;
  };
  Cold cold_entries(const KeyBlock& block, const uint8_t* expected_lengths, std::vector<ReadEntry>& reads);
  Clock::time_point disk_deadline(uint32_t wait_ms) const;
  void note_for_disk(const KeyBlock& block, const std::vector<Fingerprint>& fps,
                     const std::vector<uint32_t>& entries, bool wanted);
  // Whether it is in memory now.
  bool promote(const DiskPage& page, const std::atomic<bool>& cancelled);
  // True: nothing more is to be listed.
  bool list_disk(Inventory& inventory, size_t entries_max, std::vector<JournalEntry>& entries);
  // One entry of a read batch; true when it is held.
  bool hold_read(const KeyBlock& block, const std::vector<Fingerprint>& fps, uint32_t entry,
                 uint32_t expected, uint64_t has_bytes, bool anyway, ReadEntry& read,
                 std::vector<UseQueue::Use>& uses);
  // Of one critical section: entries [first, end).
  void keep_some(const KeyBlock& block, const std::vector<Fingerprint>& fps, uint32_t first, uint32_t end,
                 const wire::KeepWish& wish, Statuses& statuses) REQUIRES(mutex_);
  // Whether entries [first, end), which are in `slots`, lie right before a chain that was wanted just now, but are to be
  // demoted.
  bool is_before_wanted(const KeyBlock& block, uint32_t first, uint32_t end,
                        const std::vector<uint32_t>& slots, wire::Intent intent) REQUIRES(mutex_);
  void take_over();
  void reserve_some(const PutRequest& put, uint32_t first, uint32_t count, Wait& wait,
                    std::vector<WriteEntry>& writes) REQUIRES(mutex_);
  void open_disk();
  bool reserve_one(const PutRequest& put, uint32_t entry, uint64_t bytes_left, Wait& wait, WriteEntry& write)
      REQUIRES(mutex_);
  // Room for `bytes` more within the limits of the namespace, made of its own objects. False: none of them may go.
  bool make_quota_room(const NamespaceId& ns, uint64_t bytes, uint32_t own_batch) REQUIRES(mutex_);
  ObjectTable::Evicted evict_quota_step(NamespaceQuotas::Group& group, uint64_t coming_bytes,
                                        uint32_t own_batch) REQUIRES(mutex_);
  bool is_same(uint32_t occupant, const PutRequest& put, uint32_t entry) const REQUIRES(mutex_);
  wire::Status seal_one(const PutRequest& put, uint32_t entry, WriteEntry& write,
                        std::vector<JournalEntry>& added) REQUIRES(mutex_);
  void rank_uses() noexcept REQUIRES(mutex_);
  void note_uses(const std::vector<UseQueue::Use>& uses) EXCLUDES(mutex_);

  // Makes an extent of `size_bytes` free, and up to `ahead_bytes` where that is no more work; for a slot, or whichever
  // is short. Gives the lock up in between.
  Room make_room(ObjectTable::Short lacking, uint64_t size_bytes, uint64_t ahead_bytes, const Wait& wait)
      REQUIRES(mutex_);
  Room make_window(uint64_t size_bytes, const Wait& waits) REQUIRES(mutex_);
  void drain_chunk() REQUIRES(mutex_);
  bool may_free_later(const ObjectTable::Evicted& seen, const Wait& wait) const REQUIRES(mutex_);
  bool is_over(const Wait& wait) const REQUIRES(mutex_) {
    return wait.cancelled.load() || closed_ || Clock::now() >= wait.deadline;
  }
  // Evicts in short critical sections, giving the lock up in between, until so much is freed or everything was looked
  // at once.
  ObjectTable::Evicted evict_locked(uint64_t wanted_bytes, uint32_t own_batch) REQUIRES(mutex_);
  // One critical section.
  ObjectTable::Evicted evict_step(uint64_t wanted_bytes, uint32_t own_batch) REQUIRES(mutex_);
  // What stays on disk is taken out of `removed`, and not told.
  void journal_removed(std::vector<JournalEntry>& removed) REQUIRES(mutex_);
  void journal_evicted(std::vector<JournalEntry>& removed, uint64_t freed_bytes) REQUIRES(mutex_);
  void give_way() REQUIRES(mutex_);  // lets others have the lock for a moment
  void space_came() noexcept REQUIRES(mutex_);
  void run_evictor() EXCLUDES(mutex_);
  bool wants_free_ahead() const REQUIRES(mutex_) { return objects_.free_bytes() < free_ahead_bytes_; }
  bool wants_eviction() REQUIRES(mutex_) {
    return wants_free_ahead() || objects_.quotas().over_limit() != nullptr;
  }

  const ProcessOwner owner_;
  const SegmentStoreOptions options_;
  const uint64_t free_ahead_bytes_;
  const PoolLayout layout_;
  KeptPool pool_;
  Journal journal_;
  PoolContent content_;
  Budgets budgets_;

  Mutex mutex_;  // before that of any shard
  ObjectTable objects_ GUARDED_BY(mutex_);
  ObjectShards& shards_;              // of objects_; has locks of its own
  const RetiredNamespaces& retired_;  // likewise
  UseQueue uses_;
  struct WantedChain {
    NamespaceId ns{};
    uint32_t depth = 0;  // of its first page; 0: nothing lies before it, or nothing was wanted just now
  };
  WantedChain wanted_chain_ GUARDED_BY(mutex_);
  std::vector<UseQueue::Use> ranked_uses_ GUARDED_BY(mutex_);  // memory that is used again
  CondVar space_freed_;                                        // with mutex_
  CondVar evict_wanted_;                                       // with mutex_
  std::atomic<uint32_t> space_waiters_{0};
  uint64_t space_freed_count_ GUARDED_BY(mutex_) = 0;  // how often something got free, or may go since
  std::atomic<bool> held_back_{false};                 // until set_namespaces
  std::atomic<bool> closed_{false};                    // set under mutex_
  Mutex join_mutex_;
  std::thread evictor_ GUARDED_BY(join_mutex_);
  std::unique_ptr<DiskTier> disk_;  // null: none

  std::atomic<uint64_t> puts_{0}, put_bytes_{0}, gets_{0}, get_bytes_{0}, misses_{0}, exists_hits_{0};
  std::atomic<uint64_t> dropped_objects_{0}, evicted_objects_{0}, evicted_bytes_{0}, digest_mismatches_{0},
      conflicts_{0};
  std::atomic<uint64_t> no_space_{0}, not_committed_{0}, evictor_errors_{0};
  std::atomic<uint64_t> quota_evicted_objects_{0}, quota_evicted_bytes_{0}, quota_refused_{0};
  std::atomic<uint64_t> copied_out_{0}, copied_out_bytes_{0}, copied_in_{0}, copied_in_bytes_{0};
  std::atomic<uint64_t> evicted_to_disk_{0}, promoted_{0};
};

}  // namespace kvstore
