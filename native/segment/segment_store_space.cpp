// Room for what is written: eviction by need and a little ahead of it, windows for what no extent is long enough for,
// and waiting for those who may leave some.
#include <algorithm>
#include <thread>

#include "segment/segment_store.hpp"

namespace kvstore {
namespace {

constexpr uint32_t kEvictSteps = 1024;  // objects looked at in one critical section: well under a millisecond
constexpr auto kEvictorPause = std::chrono::milliseconds(20);  // after a round that could free nothing
// What a put makes free for its later entries while it is at it.
constexpr uint64_t kAheadMax = 4ull << 20;
// Small objects may go in the order of the policy, without an extent getting long enough, up to this share of the pool;
// then a window is looked for.
constexpr uint64_t kLooseShare = 64;
constexpr uint64_t kLargeBytes = 1ull << 20;
constexpr int kWindowTries = 3;
// So long a batch waits for others that write.
constexpr auto kPatience = std::chrono::milliseconds(250);
// A put that may not wait has this much to make room all the same.
constexpr auto kWorkTime = std::chrono::milliseconds(100);

}  // namespace

void SegmentStore::journal_removed(std::vector<JournalEntry>& removed) {
  const auto stays = [](const JournalEntry& entry) { return entry.op == JournalOp::kStays; };
  const size_t before = removed.size();
  removed.erase(std::remove_if(removed.begin(), removed.end(), stays), removed.end());
  evicted_to_disk_.fetch_add(before - removed.size(), std::memory_order_relaxed);
  if (!removed.empty()) journal_.append(removed);
}

void SegmentStore::journal_evicted(std::vector<JournalEntry>& removed, uint64_t freed_bytes) {
  evicted_objects_.fetch_add(removed.size(), std::memory_order_relaxed);
  evicted_bytes_.fetch_add(freed_bytes, std::memory_order_relaxed);
  journal_removed(removed);
}

void SegmentStore::space_came() noexcept {
  ++space_freed_count_;
  if (space_waiters_.load() > 0) space_freed_.notify_all();
}

void SegmentStore::give_way() {
  mutex_.unlock();
  // Who waits is woken by that, and would find the lock taken again: a mutex is not fair.
  std::this_thread::yield();
  mutex_.lock();
}

void SegmentStore::rank_uses() noexcept {
  uses_.take(ranked_uses_);
  for (const UseQueue::Use& use : ranked_uses_) objects_.use(use.slot, use.fp);
}

void SegmentStore::note_uses(const std::vector<UseQueue::Use>& uses) {
  if (uses.empty()) return;
  const size_t waiting = uses_.push(uses);
  if (waiting >= UseQueue::kMax) {
    const MutexLock lock(mutex_);
    rank_uses();
  } else if (waiting >= UseQueue::kSoon && mutex_.try_lock()) {
    rank_uses();
    mutex_.unlock();
  }
}

ObjectTable::Evicted SegmentStore::evict_step(uint64_t wanted_bytes, uint32_t own_batch) {
  rank_uses();
  std::vector<JournalEntry> removed;
  const ObjectTable::Evicted done =
      objects_.evict(wanted_bytes, kEvictSteps, now_ms(), own_batch, journal_.last_seq() + 1, removed);
  journal_evicted(removed, done.freed_bytes);
  if (done.freed_bytes > 0) space_came();
  return done;
}

ObjectTable::Evicted SegmentStore::evict_quota_step(NamespaceQuotas::Group& group, uint64_t coming_bytes,
                                                    uint32_t own_batch) {
  rank_uses();
  std::vector<JournalEntry> removed;
  const ObjectTable::Evicted done = objects_.evict_over_quota(group, coming_bytes, kEvictSteps, now_ms(),
                                                              own_batch, journal_.last_seq() + 1, removed);
  // Not among the evicted of journal_evicted: those say that the pool is full.
  if (!removed.empty()) journal_.append(removed);
  quota_evicted_objects_.fetch_add(removed.size(), std::memory_order_relaxed);
  quota_evicted_bytes_.fetch_add(done.freed_bytes, std::memory_order_relaxed);
  if (done.freed_bytes > 0) space_came();
  return done;
}

bool SegmentStore::make_quota_room(const NamespaceId& ns, uint64_t bytes, uint32_t own_batch) {
  while (NamespaceQuotas::Group* const group = objects_.quotas().over_limit(ns, bytes)) {
    if (bytes > group->limit_bytes || closed_.load()) return false;
    if (evict_quota_step(*group, bytes, own_batch).freed_bytes == 0) return false;
    if (objects_.quotas().over_limit(ns, bytes) != nullptr) give_way();  // the group may be another one then
  }
  return true;
}

ObjectTable::Evicted SegmentStore::evict_locked(uint64_t wanted_bytes, uint32_t own_batch) {
  ObjectTable::Evicted all;
  // One look at each object is enough: what was pinned a moment ago still is.
  for (uint64_t looked_at = 0; all.freed_bytes < wanted_bytes && looked_at <= objects_.object_count();) {
    const ObjectTable::Evicted step = evict_step(wanted_bytes - all.freed_bytes, own_batch);
    all.freed_bytes += step.freed_bytes;
    all.blocked += step.blocked;
    all.spared += step.spared;
    all.exhausted = step.exhausted;
    looked_at += std::max(step.looked_at, 1u);
    if (step.exhausted) break;
    if (all.freed_bytes < wanted_bytes) give_way();
  }
  return all;
}

uint64_t SegmentStore::evict_bytes(uint64_t wanted_bytes) {
  const MutexLock lock(mutex_);
  return evict_locked(wanted_bytes, 0).freed_bytes;
}

void SegmentStore::drain_chunk() {
  std::vector<JournalEntry> removed;
  const uint64_t used_before = objects_.used_bytes();
  objects_.drain_chunk(now_ms(), journal_.last_seq() + 1, removed);
  const bool any = !removed.empty();
  journal_evicted(removed, used_before - std::min(used_before, objects_.used_bytes()));
  if (any) space_came();
}

bool SegmentStore::may_free_later(const ObjectTable::Evicted& seen, const Wait& wait) const {
  // Pins run out, and readers leave.
  if (seen.blocked > 0 || objects_.removed_held_count() > 0) return true;
  // What others write or have in open batches may be given up, or be over: or they wait for us, as runs of the same
  // batch do that come by other connections.
  if (seen.spared == 0 && objects_.writing_count() <= wait.own_writes) return false;
  if (wait.batch == nullptr) return true;
  if (wait.batch->patient_until_ == Clock::time_point::min())
    wait.batch->patient_until_ = Clock::now() + kPatience;
  return Clock::now() < wait.batch->patient_until_;
}

SegmentStore::Room SegmentStore::make_window(uint64_t size_bytes, const Wait& waits) {
  const Wait wait{std::max(waits.deadline, Clock::now() + kWorkTime), waits.cancelled, waits.batch,
                  waits.own_writes};
  Room room = Room::kNever;
  uint64_t lost_bytes = 0;
  for (int tries = 0; tries < kWindowTries && lost_bytes <= 2 * size_bytes; ++tries) {
    rank_uses();
    ObjectTable::WindowSearch search;
    search.size_bytes = size_bytes;
    while (!objects_.search_window(search, now_ms())) {
      give_way();
      if (is_over(wait)) return Room::kLater;
    }
    if (!search.best) {
      ObjectTable::Evicted seen;
      seen.blocked = search.blocked;
      seen.spared = static_cast<uint32_t>(objects_.batches().size());
      return may_free_later(seen, wait) ? Room::kLater : room;
    }
    room = Room::kLater;
    for (ObjectTable::Window window = *search.best;;) {
      std::vector<JournalEntry> removed;
      const uint64_t used_before = objects_.used_bytes(), cleared_before = window.cleared;
      const ObjectTable::Cleared step =
          objects_.clear_window(window, now_ms(), journal_.last_seq() + 1, removed);
      // What is cleared counts as used until the window is done.
      const uint64_t kept = window.cleared > cleared_before ? window.cleared - cleared_before : 0;
      const uint64_t used_now = objects_.used_bytes();
      const uint64_t freed = used_before + kept > used_now ? used_before + kept - used_now : 0;
      lost_bytes += removed.empty() ? 0 : freed;
      journal_evicted(removed, removed.empty() ? 0 : freed);
      if (step == ObjectTable::Cleared::kDone) return Room::kMade;
      if (step == ObjectTable::Cleared::kLost) {
        space_came();
        break;
      }
      give_way();
      if (is_over(wait)) {
        objects_.give_up(window);
        space_came();
        return Room::kLater;
      }
    }
  }
  return room;
}

SegmentStore::Room SegmentStore::make_room(ObjectTable::Short lacking, uint64_t size_bytes,
                                           uint64_t ahead_bytes, const Wait& wait) {
  const uint32_t own_batch = wait.batch == nullptr ? 0 : wait.batch->id();
  if (lacking == ObjectTable::Short::kSlots) {
    // Each object that goes leaves a slot. Where many bytes lie free for the want of slots a chunk of them is worth
    // its window.
    if (objects_.free_bytes() >= 2 * size_bytes && make_window(size_bytes, wait) == Room::kMade)
      return Room::kMade;
    const ObjectTable::Evicted done = evict_locked(1, own_batch);
    if (done.freed_bytes > 0) return Room::kMade;
    return may_free_later(done, wait) ? Room::kLater : Room::kNever;
  }
  const uint64_t loose =
      size_bytes >= kLargeBytes ? 0 : std::min(objects_.capacity_bytes() / kLooseShare, 16 * size_bytes);
  ObjectTable::Evicted done;
  while (objects_.largest_free_bytes() < size_bytes && objects_.free_bytes() < size_bytes + loose) {
    const uint64_t short_bytes = size_bytes + loose - objects_.free_bytes();
    const uint64_t wanted = std::max(std::min(size_bytes, short_bytes), std::min(ahead_bytes, kAheadMax));
    done = evict_locked(wanted, own_batch);
    if (done.freed_bytes == 0) break;
  }
  if (objects_.largest_free_bytes() < size_bytes) drain_chunk();
  if (objects_.largest_free_bytes() >= size_bytes) return Room::kMade;
  const Room window = make_window(size_bytes, wait);
  if (window != Room::kNever) return window;
  return may_free_later(done, wait) ? Room::kLater : Room::kNever;
}

void SegmentStore::run_evictor() {
  MutexLock lock(mutex_);
  while (!closed_.load()) {
    while (!closed_.load() && !wants_eviction()) evict_wanted_.wait(mutex_);
    bool progress = true;
    while (!closed_.load() && progress && wants_eviction()) {
      try {
        progress = false;
        if (NamespaceQuotas::Group* const group = objects_.quotas().over_limit())
          progress = evict_quota_step(*group, 0, 0).freed_bytes > 0;
        // A little at a time, so that writers and readers get the lock in between.
        if (wants_free_ahead())
          progress |= evict_step(std::max<uint64_t>(free_ahead_bytes_ / 8, ExtentAllocator::kUnitBytes), 0)
                          .freed_bytes > 0;
      } catch (const std::exception&) {
        evictor_errors_.fetch_add(1, std::memory_order_relaxed);
        progress = false;
      }
      lock.unlock();
      lock.lock();
    }
    if (closed_.load() || progress) continue;
    const auto pause_end = Clock::now() + kEvictorPause;
    while (!closed_.load() && evict_wanted_.wait_until(mutex_, pause_end) == std::cv_status::no_timeout) {
    }
  }
}

// ---- batches of puts

void PutBatch::begin_put() {
  const MutexLock lock(store_.mutex_);
  const uint64_t now = SegmentStore::now_ms();
  PutBatches& batches = store_.objects_.batches();
  batches.expire(now);
  if (batches.begin_request(id_, now)) return;
  if (id_ != 0) is_committed_later_ = true;  // somebody else's commit has ended it
  id_ = batches.open(now);
  batches.begin_request(id_, now);
  refused_bytes_ = UINT64_MAX;
  patient_until_ = SegmentStore::Clock::time_point::min();
}

void PutBatch::end_put(uint64_t seq) noexcept {
  const MutexLock lock(store_.mutex_);
  store_.objects_.batches().end_request(id_, seq, SegmentStore::now_ms());
}

void PutBatch::end() noexcept {
  if (id_ == 0) return;
  const MutexLock lock(store_.mutex_);
  store_.objects_.batches().close(id_);
  store_.space_came();
  id_ = 0;
}

void SegmentStore::end_batches_up_to(uint64_t seq) {
  const MutexLock lock(mutex_);
  objects_.batches().close_up_to(seq);
  space_came();
}

}  // namespace kvstore
