// The batches of the data port: look up, hold, reserve, seal, remove, verify. Each takes the mutex once for
// up to kLockedMax entries. Batches are gone through from the end wherever that ranks objects for eviction:
// the head of a prefix, without which its tail is useless, is then the last used of its batch and the last to
// go.
#include <algorithm>

#include "base/digest.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {
namespace {

using wire::Status;

constexpr uint32_t kLockedMax = 1024;  // entries of one critical section
constexpr uint32_t kPrefetchAhead = 8;
// How often a put that waits for space looks at everything again, at most.
constexpr auto kSpacePoll = std::chrono::milliseconds(10);
// And how often it looks whether pins have run out.
constexpr auto kPinPoll = std::chrono::milliseconds(PinTable::kTickMs);

uint8_t code(Status status) { return static_cast<uint8_t>(status); }

// Counts one who waits for space, or is about to.
class Waiter {
 public:
  explicit Waiter(std::atomic<uint32_t>& count) : count_(count) { count_.fetch_add(1); }
  ~Waiter() { count_.fetch_sub(1); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  std::atomic<uint32_t>& count_;
};

// Calls each(first, end) for chunks of [0, n), the last chunk first.
template <typename Each>
void from_the_end(uint32_t n, Each&& each) {
  for (uint32_t end = n; end > 0;) {
    const uint32_t first = end > kLockedMax ? end - kLockedMax : 0;
    each(first, end);
    end = first;
  }
}

}  // namespace

SegmentStore::Statuses SegmentStore::pin(const KeyBlock& block, uint32_t pin_ms, uint32_t owner) {
  const uint32_t n = block.entry_count();
  const std::vector<Fingerprint> fps = block.fingerprints();
  Statuses statuses(n, code(Status::kMiss));
  uint64_t hits = 0, unpromised = 0;
  const uint32_t kept_ms = std::min(pin_ms, wire::kPinMsMax);
  if (closed_.load() || held_back_.load() || retired_.has(block.ns)) return statuses;
  const uint64_t now = now_ms();
  shards_.expire_pins(now);
  for (uint32_t i = 0; i < n; ++i) {
    if (i + kPrefetchAhead < n) shards_.prefetch(fps[i + kPrefetchAhead]);
    const ObjectShards::Pinned pinned = shards_.pin(fps[i], block.key(i), now, kept_ms, owner);
    if (pinned == ObjectShards::Pinned::kMiss) continue;
    unpromised += kept_ms > 0 && pinned == ObjectShards::Pinned::kThere;
    statuses[i] = code(Status::kOk);
    ++hits;
  }
  if (disk_ != nullptr && hits < n)
    for (uint32_t i = 0; i < n; ++i)
      if (statuses[i] == code(Status::kMiss) && disk_->pin(fps[i], kept_ms == 0 ? 0 : now + kept_ms)) {
        statuses[i] = code(Status::kOk);
        ++hits;
      }
  exists_hits_.fetch_add(hits, std::memory_order_relaxed);
  budgets_.pinned_bytes.count_refused(unpromised);
  return statuses;
}

bool SegmentStore::hold_read(const KeyBlock& block, const std::vector<Fingerprint>& fps, uint32_t entry,
                             uint32_t expected, uint64_t has_bytes, bool anyway, ReadEntry& read,
                             std::vector<UseQueue::Use>& uses) {
  const HeldObject held = shards_.hold(fps[entry], block.key(entry), expected, anyway, has_bytes);
  if (!held.found) return false;
  read.length = held.length;
  if (held.slot == kNoSlot) {
    read.status = held.refused ? Status::kUnavailable : Status::kLengthMismatch;
    return false;
  }
  read.status = Status::kOk;
  read.slot = held.slot;
  read.wire_slot = held.wire_slot;
  read.digest_alg = held.digest_alg;
  read.digest = held.digest;
  read.offset = held.offset;
  read.generation = held.generation;
  read.data = pool_.memory().base() + held.offset;
  uses.push_back({held.slot, fps[entry]});
  return true;
}

std::vector<ReadEntry> SegmentStore::acquire_reads(const KeyBlock& block, const uint8_t* expected_lengths,
                                                   uint64_t has_bytes, bool anyway) {
  const std::vector<Fingerprint> fps = block.fingerprints();
  const uint32_t n = block.entry_count();
  std::vector<ReadEntry> reads(n);
  std::vector<UseQueue::Use> uses;
  std::vector<uint32_t> used;
  uint64_t bytes = 0, refused = 0;
  uses.reserve(n);
  const bool gone = closed_.load() || held_back_.load() || retired_.has(block.ns);
  for (uint32_t i = gone ? 0 : n; i-- > 0;) {
    if (i >= kPrefetchAhead) shards_.prefetch(fps[i - kPrefetchAhead]);
    ReadEntry& read = reads[i];
    const uint32_t expected = expected_lengths == nullptr ? 0 : wire::u32_at(expected_lengths, i);
    if (hold_read(block, fps, i, expected, has_bytes + bytes, anyway, read, uses)) {
      bytes += read.length;
      if (disk_ != nullptr) used.push_back(i);
    }
    refused += read.status == Status::kUnavailable;
  }
  budgets_.held_bytes.count_refused(refused);
  note_uses(uses);
  note_for_disk(block, fps, used, false);
  gets_.fetch_add(uses.size(), std::memory_order_relaxed);
  get_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  misses_.fetch_add(
      static_cast<uint64_t>(std::count_if(reads.begin(), reads.end(),
                                          [](const ReadEntry& r) { return r.status == Status::kMiss; })),
      std::memory_order_relaxed);
  return reads;
}

void SegmentStore::release_reads(const std::vector<ReadEntry>& reads) noexcept {
  bool idle = false;
  uint32_t removed[64];
  size_t count = 0;
  const auto free_removed = [&] {
    const MutexLock lock(mutex_);
    for (size_t i = 0; i < count; ++i) objects_.free_removed(removed[i]);
    count = 0;
    space_came();
  };
  for (const ReadEntry& read : reads) {
    if (read.slot == kNoSlot) continue;
    const ObjectShards::Left left = shards_.unhold(read.slot);
    idle |= left == ObjectShards::Left::kIdle;
    if (left == ObjectShards::Left::kRemoved) removed[count++] = read.slot;
    if (count == std::size(removed)) free_removed();
  }
  if (count > 0) free_removed();
  if (idle && space_waiters_.load() > 0) {
    const MutexLock lock(mutex_);
    space_came();
  }
}

bool SegmentStore::is_same(uint32_t occupant, const PutRequest& put, uint32_t entry) const {
  return objects_.header(occupant).has_key(put.block.key(entry)) &&
         objects_.length(occupant) == put.length(entry);
}

bool SegmentStore::reserve_one(const PutRequest& put, uint32_t entry, uint64_t bytes_left, Wait& wait,
                               WriteEntry& write) {
  const Key key = put.block.key(entry);
  const uint32_t length = put.length(entry);
  const auto text = put.text(entry);
  const uint64_t bytes = ExtentAllocator::rounded(uint64_t{length} + text.size());
  if (bytes > objects_.capacity_bytes()) return false;
  if (!wait.may_evict && objects_.free_bytes() < bytes + free_ahead_bytes_) return false;
  PutBatch* const batch = wait.batch;
  if (!make_quota_room(key.ns, length, batch == nullptr ? 0 : batch->id())) {
    quota_refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  for (auto look_again = Clock::time_point::min();;) {
    const ObjectTable::Reserved reserved = objects_.reserve(key, length, put.depth(entry), text);
    write.slot = reserved.slot;
    if (write.slot != kNoSlot) break;
    if (closed_.load() || wait.gave_up || !wait.may_evict) return false;
    if (batch != nullptr && batch->refused_at_ == space_freed_count_ && bytes >= batch->refused_bytes_ &&
        Clock::now() < batch->refused_until_)
      return false;
    const bool waits = Clock::now() < look_again;  // everything was looked at a moment ago
    const Waiter waiter(space_waiters_);
    const uint64_t freed_before = space_freed_count_;
    const Room room =
        waits ? Room::kLater
              : make_room(reserved.lacking,
                          reserved.lacking == ObjectTable::Short::kSlots ? objects_.chunk_bytes() : bytes,
                          bytes_left, wait);
    if (room == Room::kMade) continue;
    if (is_over(wait)) {
      wait.gave_up = true;
      return false;
    }
    if (room == Room::kNever) {
      if (space_freed_count_ != freed_before) continue;  // the lock was let go meanwhile
      if (batch != nullptr && !closed_.load()) {
        batch->refused_bytes_ = bytes;
        batch->refused_at_ = space_freed_count_;
        batch->refused_until_ = Clock::now() + kPinPoll;
      }
      return false;
    }
    if (!waits) look_again = Clock::now() + kSpacePoll;
    if (space_freed_count_ != freed_before && !waits) continue;
    // Woken before the next look is due: what came meanwhile is looked at then.
    space_freed_.wait_until(mutex_, std::min(wait.deadline, waits ? look_again : Clock::now() + kPinPoll));
    shards_.expire_pins(now_ms());
  }
  write.data = objects_.data(write.slot);
  write.status = Status::kOk;
  ++wait.own_writes;
  if (batch != nullptr) objects_.set_batch(write.slot, batch->id());
  return true;
}

void SegmentStore::reserve_writes(const PutRequest& put, uint32_t first, uint32_t count,
                                  Clock::time_point deadline, const std::atomic<bool>& cancelled,
                                  std::vector<WriteEntry>& writes, PutBatch* batch) {
  Wait wait{deadline, cancelled, batch};
  for (const WriteEntry& write : writes) wait.own_writes += write.slot != kNoSlot;
  const MutexLock lock(mutex_);
  reserve_some(put, first, count, wait, writes);
}

void SegmentStore::reserve_in_free_room(const PutRequest& put, std::vector<WriteEntry>& writes,
                                        PutBatch* batch) {
  Wait wait{Clock::time_point::min(), closed_, batch};
  wait.may_evict = false;
  const MutexLock lock(mutex_);
  reserve_some(put, 0, put.entry_count(), wait, writes);
}

void SegmentStore::reserve_some(const PutRequest& put, uint32_t first, uint32_t count, Wait& wait,
                                std::vector<WriteEntry>& writes) {
  PutBatch* const batch = wait.batch;
  uint64_t bytes_left = 0;
  for (uint32_t i = first; i < first + count; ++i) bytes_left += ExtentAllocator::rounded(put.length(i));
  rank_uses();
  for (uint32_t i = first; i < first + count; ++i) {
    if (i + kPrefetchAhead < first + count) objects_.prefetch(put.fingerprints[i + kPrefetchAhead]);
    WriteEntry& write = writes[i];
    const uint64_t bytes = ExtentAllocator::rounded(put.length(i));
    const uint32_t occupant = objects_.occupant(put.fingerprints[i]);
    if (closed_.load() || held_back_.load()) {
      write.status = Status::kUnavailable;
    } else if (objects_.namespaces().is_retired(put.block.ns)) {
      write.status = Status::kStaleNamespace;
    } else if (occupant != kNoSlot) {
      const bool same = is_same(occupant, put, i);
      write.status = same ? Status::kExists : Status::kConflict;
      if (same && batch != nullptr) objects_.set_batch(occupant, batch->id());
      if (!same) conflicts_.fetch_add(1, std::memory_order_relaxed);
    } else if (!reserve_one(put, i, bytes_left, wait, write)) {
      write.status = Status::kNoSpace;
      no_space_.fetch_add(1, std::memory_order_relaxed);
    }
    bytes_left -= bytes;
  }
  if (wants_eviction()) evict_wanted_.notify_one();
}

Status SegmentStore::seal_one(const PutRequest& put, uint32_t entry, WriteEntry& write,
                              std::vector<JournalEntry>& added) {
  const uint32_t slot = write.slot;
  const uint32_t occupant = objects_.occupant(put.fingerprints[entry]);
  Status status = Status::kOk;
  if (write.digest_refused) {
    status = Status::kDigestMismatch;
  } else if (closed_.load()) {
    status = Status::kUnavailable;
  } else if (objects_.namespaces().is_retired(put.block.ns)) {
    status = Status::kStaleNamespace;
  } else if (occupant != kNoSlot) {  // another writer was faster
    const bool same = is_same(occupant, put, entry);
    status = same ? Status::kExists : Status::kConflict;
    if (same) objects_.set_batch(occupant, objects_.batch(slot));
    if (!same || objects_.header(occupant).digest != write.digest)
      conflicts_.fetch_add(1, std::memory_order_relaxed);
  }
  if (status != Status::kOk) {
    objects_.abandon(slot);
  } else if (const auto entry_added =
                 objects_.seal(slot, put.fingerprints[entry], kDigestCrc32c, write.digest,
                               journal_.last_seq() + 1 + added.size(), put.keep.intent)) {
    if (disk_ != nullptr) disk_->forget_other(put.fingerprints[entry], put.length(entry), write.digest);
    added.push_back(*entry_added);  // within its capacity
  } else {
    status = Status::kInternal;
  }
  return status;
}

uint64_t SegmentStore::seal_writes(const PutRequest& put, std::vector<WriteEntry>& writes, Came came) {
  uint64_t durable_seq = 0, objects = 0, bytes = 0, refused = 0;
  from_the_end(put.entry_count(), [&](uint32_t first, uint32_t end) {
    std::vector<JournalEntry> added;
    added.reserve(end - first);
    const MutexLock lock(mutex_);
    rank_uses();
    if (end == put.entry_count()) objects_.begin_seals();
    bool freed = false;
    for (uint32_t i = end; i-- > first;) {
      if (i >= first + kPrefetchAhead) objects_.prefetch(put.fingerprints[i - kPrefetchAhead]);
      WriteEntry& write = writes[i];
      if (write.slot == kNoSlot) continue;
      write.status = seal_one(put, i, write, added);
      refused += write.status == Status::kDigestMismatch;
      if (write.status == Status::kOk) {
        bytes += put.length(i);
      } else {
        freed = true;
      }
      write.slot = kNoSlot;
      write.data = nullptr;
    }
    if (!added.empty()) journal_.append(added);
    objects += added.size();
    for (uint32_t i = first; i < end; ++i) {
      if (writes[i].status != Status::kOk && writes[i].status != Status::kExists) continue;
      const uint32_t occupant = objects_.occupant(put.fingerprints[i]);
      if (occupant != kNoSlot) durable_seq = std::max(durable_seq, objects_.seq(occupant));
    }
    if (freed) space_came();
  });
  digest_mismatches_.fetch_add(refused, std::memory_order_relaxed);
  if (came == Came::kFromDisk) return durable_seq;
  if (disk_ != nullptr) {
    std::vector<uint32_t> stored;
    for (uint32_t i = 0; i < put.entry_count(); ++i)
      if (writes[i].status == Status::kOk || writes[i].status == Status::kExists) stored.push_back(i);
    note_for_disk(put.block, put.fingerprints, stored, put.keep.intent == wire::Intent::kRetain);
  }
  puts_.fetch_add(objects, std::memory_order_relaxed);
  put_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return durable_seq;
}

void SegmentStore::abandon_writes(std::vector<WriteEntry>& writes) noexcept {
  const MutexLock lock(mutex_);
  bool freed = false;
  for (WriteEntry& write : writes) {
    if (write.slot == kNoSlot) continue;
    objects_.abandon(write.slot);
    write.slot = kNoSlot;
    write.data = nullptr;
    freed = true;
  }
  if (freed) space_came();
}

std::pair<SegmentStore::Statuses, uint64_t> SegmentStore::remove(const KeyBlock& block) {
  const uint32_t n = block.entry_count();
  const std::vector<Fingerprint> fps = block.fingerprints();
  Statuses statuses(n, code(Status::kMiss));
  uint64_t last_seq = 0;
  for (uint32_t first = 0; first < n; first += kLockedMax) {
    const uint32_t end = std::min(n, first + kLockedMax);
    std::vector<JournalEntry> removed;
    removed.reserve(end - first);  // nothing below may fail once an object is gone
    const MutexLock lock(mutex_);
    for (uint32_t i = first; i < end; ++i) {
      const uint32_t slot = objects_.find(fps[i], block.key(i));
      // First: what is on disk would stay.
      const bool was_on_disk = disk_ != nullptr && disk_->forget(fps[i]);
      if (slot == kNoSlot) {
        if (!was_on_disk) continue;
        removed.push_back({fps[i], block.ns, 0, JournalOp::kRemove});
        journal_.foretell(removed.back());
        statuses[i] = code(Status::kOk);
        continue;
      }
      removed.push_back(objects_.remove(slot, journal_.last_seq() + 1 + removed.size()));
      statuses[i] = code(Status::kOk);
    }
    if (removed.empty()) continue;
    last_seq = journal_.append(removed) + removed.size() - 1;
    space_came();
  }
  return {std::move(statuses), last_seq};
}

SegmentStore::Statuses SegmentStore::drop_objects(const NamespaceId& ns,
                                                  const std::vector<Fingerprint>& fingerprints) {
  Statuses statuses(fingerprints.size(), code(Status::kMiss));
  for (size_t first = 0; first < fingerprints.size(); first += kLockedMax) {
    const size_t end = std::min<size_t>(fingerprints.size(), first + kLockedMax);
    std::vector<JournalEntry> removed;
    removed.reserve(end - first);  // nothing below may fail once an object is gone
    const MutexLock lock(mutex_);
    if (closed_.load() || held_back_.load() || objects_.namespaces().is_retired(ns)) break;
    const uint64_t now = now_ms();
    for (size_t i = first; i < end; ++i) {
      const uint32_t slot = objects_.occupant(fingerprints[i]);
      if (slot == kNoSlot) {
        // On disk alone it takes no memory, and is no loss to keep.
        if (disk_ != nullptr && disk_->stays(fingerprints[i])) statuses[i] = code(Status::kUnavailable);
        continue;
      }
      if (objects_.header(slot).ns != ns) continue;
      if (!shards_.is_idle(slot, now)) {
        statuses[i] = code(Status::kUnavailable);
        continue;
      }
      if (disk_ != nullptr) disk_->forget(fingerprints[i]);  // first: what is on disk would stay
      removed.push_back(objects_.remove(slot, journal_.last_seq() + 1 + removed.size()));
      statuses[i] = code(Status::kOk);
    }
    if (removed.empty()) continue;
    journal_.append(removed);
    dropped_objects_.fetch_add(removed.size(), std::memory_order_relaxed);
    space_came();
  }
  return statuses;
}

SegmentStore::Statuses SegmentStore::verify(const KeyBlock& block) {
  const uint32_t n = block.entry_count();
  const std::vector<Fingerprint> fps = block.fingerprints();
  Statuses statuses(n, code(Status::kMiss));
  std::vector<JournalEntry> removed(1);
  for (uint32_t i = 0; i < n; ++i) {
    const HeldObject held = shards_.hold(fps[i], block.key(i), 0, true);
    if (!held.found) continue;
    const bool intact = crc32c(0, pool_.memory().base() + held.offset, held.length) == held.digest;
    if (!intact) {
      const MutexLock lock(mutex_);
      if (const auto gone = objects_.quarantine(held.slot, journal_.last_seq() + 1)) {
        removed[0] = *gone;
        journal_removed(removed);
      }
      digest_mismatches_.fetch_add(1, std::memory_order_relaxed);
    }
    statuses[i] = code(intact ? Status::kOk : Status::kDigestMismatch);
    std::vector<ReadEntry> done(1);
    done[0].slot = held.slot;
    release_reads(done);
  }
  return statuses;
}

}  // namespace kvstore
