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
// How often a put that waits for space looks again: pins and holds run out without anybody telling it.
constexpr auto kSpacePoll = std::chrono::milliseconds(10);

uint8_t code(Status status) { return static_cast<uint8_t>(status); }

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

SegmentStore::Statuses SegmentStore::pin(const KeyBlock& block, uint32_t pin_ms) {
  const uint32_t n = block.entry_count();
  const std::vector<Fingerprint> fps = block.fingerprints();
  Statuses statuses(n, code(Status::kMiss));
  uint64_t hits = 0;
  const uint32_t kept_ms = std::min(pin_ms, wire::kPinMsMax);
  for (uint32_t first = 0; first < n; first += kLockedMax) {
    const uint32_t end = std::min(n, first + kLockedMax);
    const MutexLock lock(mutex_);
    if (closed_ || objects_.namespaces().is_retired(block.ns)) break;
    const uint64_t now = now_ms();
    for (uint32_t i = first; i < end; ++i) {
      if (i + kPrefetchAhead < end) objects_.prefetch(fps[i + kPrefetchAhead]);
      const uint32_t slot = objects_.find(fps[i], block.key(i));
      if (slot == kNoSlot) continue;
      if (kept_ms > 0) objects_.pin(slot, now, kept_ms);  // over budget: there, but with no promise
      statuses[i] = code(Status::kOk);
      ++hits;
    }
  }
  exists_hits_.fetch_add(hits, std::memory_order_relaxed);
  return statuses;
}

std::vector<ReadEntry> SegmentStore::acquire_reads(const KeyBlock& block, const uint8_t* expected_lengths) {
  const std::vector<Fingerprint> fps = block.fingerprints();
  std::vector<ReadEntry> reads(block.entry_count());
  uint64_t hits = 0, misses = 0, bytes = 0;
  from_the_end(block.entry_count(), [&](uint32_t first, uint32_t end) {
    const MutexLock lock(mutex_);
    const bool gone = closed_ || objects_.namespaces().is_retired(block.ns);
    for (uint32_t i = end; i-- > first;) {
      if (i >= first + kPrefetchAhead) objects_.prefetch(fps[i - kPrefetchAhead]);
      ReadEntry& read = reads[i];
      const uint32_t slot = gone ? kNoSlot : objects_.find(fps[i], block.key(i));
      if (slot == kNoSlot) {
        ++misses;
        continue;
      }
      const SlotHeader& h = objects_.header(slot);
      read.length = objects_.length(slot);
      const uint32_t expected = expected_lengths == nullptr ? 0 : wire::u32_at(expected_lengths, i);
      if (expected != 0 && expected != read.length) {
        read.status = Status::kLengthMismatch;
        continue;
      }
      objects_.hold(slot);
      objects_.use(slot);
      read.status = Status::kOk;
      read.slot = slot;
      read.digest_alg = h.digest_alg;
      read.digest = h.digest;
      read.offset = objects_.offset(slot);
      read.generation = h.generation.load(std::memory_order_relaxed);
      read.data = objects_.data(slot);
      ++hits;
      bytes += read.length;
    }
  });
  gets_.fetch_add(hits, std::memory_order_relaxed);
  get_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  misses_.fetch_add(misses, std::memory_order_relaxed);
  return reads;
}

void SegmentStore::release_reads(const std::vector<ReadEntry>& reads) noexcept {
  from_the_end(static_cast<uint32_t>(reads.size()), [&](uint32_t first, uint32_t end) {
    const MutexLock lock(mutex_);
    bool freed = false;
    for (uint32_t i = first; i < end; ++i)
      if (reads[i].slot != kNoSlot) freed |= objects_.unhold(reads[i].slot);
    if (freed && space_waiters_ > 0) space_freed_.notify_all();
  });
}

bool SegmentStore::is_same(uint32_t occupant, const PutRequest& put, uint32_t entry) const {
  return objects_.header(occupant).has_key(put.block.key(entry)) &&
         objects_.length(occupant) == put.length(entry);
}

bool SegmentStore::reserve_one(const PutRequest& put, uint32_t entry, uint64_t wanted_bytes,
                               Clock::time_point deadline, const std::atomic<bool>& cancelled,
                               WriteEntry& write) {
  const Key key = put.block.key(entry);
  const uint32_t length = put.length(entry);
  const auto text = put.text(entry);
  if (ExtentAllocator::rounded(uint64_t{length} + text.size()) > objects_.capacity_bytes()) return false;
  for (;;) {
    write.slot = objects_.reserve(key, length, put.depth(entry), text);
    if (write.slot != kNoSlot) break;
    if (evict_locked(wanted_bytes) > 0) continue;
    if (cancelled.load() || closed_ || Clock::now() >= deadline) return false;
    ++space_waiters_;
    space_freed_.wait_until(mutex_, std::min(deadline, Clock::now() + kSpacePoll));
    --space_waiters_;
  }
  write.data = objects_.data(write.slot);
  write.status = Status::kOk;
  return true;
}

void SegmentStore::reserve_writes(const PutRequest& put, uint32_t first, uint32_t count,
                                  Clock::time_point deadline, const std::atomic<bool>& cancelled,
                                  std::vector<WriteEntry>& writes) {
  uint64_t bytes_left = 0;
  for (uint32_t i = first; i < first + count; ++i) bytes_left += ExtentAllocator::rounded(put.length(i));
  const MutexLock lock(mutex_);
  for (uint32_t i = first; i < first + count; ++i) {
    if (i + kPrefetchAhead < first + count) objects_.prefetch(put.fingerprints[i + kPrefetchAhead]);
    WriteEntry& write = writes[i];
    const uint64_t bytes = ExtentAllocator::rounded(put.length(i));
    const uint32_t occupant = objects_.occupant(put.fingerprints[i]);
    if (closed_) {
      write.status = Status::kUnavailable;
    } else if (objects_.namespaces().is_retired(put.block.ns)) {
      write.status = Status::kStaleNamespace;
    } else if (occupant != kNoSlot) {
      const bool same = is_same(occupant, put, i);
      write.status = same ? Status::kExists : Status::kConflict;
      if (!same) conflicts_.fetch_add(1, std::memory_order_relaxed);
    } else if (!reserve_one(put, i, bytes_left, deadline, cancelled, write)) {
      write.status = Status::kNoSpace;
      no_space_.fetch_add(1, std::memory_order_relaxed);
    }
    bytes_left -= bytes;
  }
  if (objects_.is_fuller_than(options_.high_watermark)) evict_wanted_.notify_one();
}

Status SegmentStore::seal_one(const PutRequest& put, uint32_t entry, WriteEntry& write,
                              std::vector<JournalEntry>& added) {
  const uint32_t slot = write.slot;
  const uint32_t occupant = objects_.occupant(put.fingerprints[entry]);
  Status status = Status::kOk;
  if (write.digest_refused) {
    status = Status::kDigestMismatch;
  } else if (closed_) {
    status = Status::kUnavailable;
  } else if (objects_.namespaces().is_retired(put.block.ns)) {
    status = Status::kStaleNamespace;
  } else if (occupant != kNoSlot) {  // another writer was faster
    const bool same = is_same(occupant, put, entry);
    status = same ? Status::kExists : Status::kConflict;
    if (!same || objects_.header(occupant).digest != write.digest)
      conflicts_.fetch_add(1, std::memory_order_relaxed);
  }
  if (status != Status::kOk) {
    objects_.abandon(slot);
  } else if (const auto entry_added =
                 objects_.seal(slot, put.fingerprints[entry], kDigestCrc32c, write.digest)) {
    added.push_back(*entry_added);  // within its capacity
  } else {
    status = Status::kInternal;
  }
  return status;
}

uint64_t SegmentStore::seal_writes(const PutRequest& put, std::vector<WriteEntry>& writes) {
  uint64_t durable_seq = 0, objects = 0, bytes = 0, refused = 0;
  from_the_end(put.entry_count(), [&](uint32_t first, uint32_t end) {
    std::vector<JournalEntry> added;
    std::vector<uint32_t> slots;
    added.reserve(end - first);
    slots.reserve(end - first);
    const MutexLock lock(mutex_);
    bool freed = false;
    for (uint32_t i = end; i-- > first;) {
      if (i >= first + kPrefetchAhead) objects_.prefetch(put.fingerprints[i - kPrefetchAhead]);
      WriteEntry& write = writes[i];
      if (write.slot == kNoSlot) continue;
      write.status = seal_one(put, i, write, added);
      refused += write.status == Status::kDigestMismatch;
      if (write.status == Status::kOk) {
        slots.push_back(write.slot);
        bytes += put.length(i);
      } else {
        freed = true;
      }
      write.slot = kNoSlot;
      write.data = nullptr;
    }
    if (!added.empty()) {
      uint64_t seq = journal_.append(added);
      for (const uint32_t slot : slots) objects_.set_seq(slot, seq++);
    }
    objects += slots.size();
    for (uint32_t i = first; i < end; ++i) {
      if (writes[i].status != Status::kOk && writes[i].status != Status::kExists) continue;
      const uint32_t occupant = objects_.occupant(put.fingerprints[i]);
      if (occupant != kNoSlot) durable_seq = std::max(durable_seq, objects_.seq(occupant));
    }
    if (freed && space_waiters_ > 0) space_freed_.notify_all();
  });
  puts_.fetch_add(objects, std::memory_order_relaxed);
  put_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  digest_mismatches_.fetch_add(refused, std::memory_order_relaxed);
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
  if (freed && space_waiters_ > 0) space_freed_.notify_all();
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
      if (slot == kNoSlot) continue;
      removed.push_back(objects_.remove(slot));
      statuses[i] = code(Status::kOk);
    }
    if (removed.empty()) continue;
    last_seq = journal_.append(removed) + removed.size() - 1;
    if (space_waiters_ > 0) space_freed_.notify_all();
  }
  return {std::move(statuses), last_seq};
}

SegmentStore::Statuses SegmentStore::verify(const KeyBlock& block) {
  const uint32_t n = block.entry_count();
  const std::vector<Fingerprint> fps = block.fingerprints();
  Statuses statuses(n, code(Status::kMiss));
  std::vector<JournalEntry> removed(1);
  for (uint32_t i = 0; i < n; ++i) {
    ReadEntry held;
    {
      const MutexLock lock(mutex_);
      held.slot = objects_.find(fps[i], block.key(i));
      if (held.slot == kNoSlot) continue;
      objects_.hold(held.slot);
      const SlotHeader& h = objects_.header(held.slot);
      held.length = objects_.length(held.slot);
      held.digest = h.digest;
      held.data = objects_.data(held.slot);
    }
    const bool intact = crc32c(0, held.data, held.length) == held.digest;
    const MutexLock lock(mutex_);
    if (!intact) {
      if (const auto gone = objects_.quarantine(held.slot)) {
        removed[0] = *gone;
        journal_.append(removed);
      }
      digest_mismatches_.fetch_add(1, std::memory_order_relaxed);
    }
    statuses[i] = code(intact ? Status::kOk : Status::kDigestMismatch);
    objects_.unhold(held.slot);
  }
  return statuses;
}

}  // namespace kvstore
