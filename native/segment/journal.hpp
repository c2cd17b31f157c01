// The ordered record of what a segment gained and lost, kept until the directory says that it is durable.
// Thread-safe. One consumer drains; any thread may append, acknowledge or wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "segment/journal_entry.hpp"
#include "segment/journal_ring.hpp"

namespace kvstore {

// Appends entries to `out` in the format of docs/protocol.md section 8, runs of one op and namespace as one
// group each.
void write_journal_groups(const JournalEntry* entries, size_t count, std::vector<uint8_t>& out);

class Journal {
 public:
  using Clock = std::chrono::steady_clock;
  struct Batch {
    uint64_t first_seq;
    uint64_t last_seq;
    std::vector<uint8_t> groups;
  };

  // Keeps at most `entries_max` entries. When that is not enough, those already handed out are dropped
  // (journal_rewind can't reach them any more); if that does not suffice all are, and the next batch's
  // first_seq shows the gap: only an inventory can close it. `ring`: where what is kept outlives the process, or
  // null; the journal goes on from what `recovered` found there. Throws std::system_error when no timerfd can be
  // had.
  explicit Journal(size_t entries_max, JournalRing* ring = nullptr,
                   const JournalRing::Recovered& recovered = {});
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Numbers the entries and returns the number of the first; call it under the lock that orders the changes
  // themselves. Where memory is short it is as if the entries had overrun the journal: a gap.
  uint64_t append(const std::vector<JournalEntry>& entries) noexcept;
  // The change is about to be made, and the next append() has it, in the order of these calls: whoever finds the ring of a
  // process that was killed in between knows of it. Where there is no ring this does nothing.
  void foretell(const JournalEntry& entry) noexcept;
  // Something changed that no entry can tell: the next attach or batch shows a gap, which an inventory closes. `numbers`: how many
  // may have been given for it, so that none is given twice.
  void lose(uint64_t numbers = 1) noexcept;

  // A timerfd, readable when there is something worth draining: at once when somebody waits for it or much has
  // piled up, else a moment after the first entry, so that the runs of a batch travel to the master together.
  // Owned by the journal.
  int fd() const { return timer_fd_; }
  uint64_t last_seq() const;
  uint64_t acked_seq() const { return acked_.load(std::memory_order_acquire); }
  uint64_t oldest_kept_seq() const;
  size_t backlog() const;  // entries kept
  uint64_t overflows() const { return overflows_.load(std::memory_order_relaxed); }

  std::optional<Batch> drain(size_t entries_max);
  // Throws std::invalid_argument for a number that was never given.
  void ack(uint64_t seq);
  bool rewind(uint64_t seq);
  // Everything so far counts as handed out (an inventory taken now stands for it). Returns last_seq. Call it
  // under the lock that orders the changes.
  uint64_t skip_to_end();

  // True when everything up to seq is durable; false at the deadline, or after interrupt() when `cancelled`
  // is set.
  bool wait_acked(uint64_t seq, Clock::time_point deadline, const std::atomic<bool>& cancelled);
  // Wakes all waiters so that they look at their `cancelled` flag.
  void interrupt();

 private:
  enum class Alarm { kOff, kSoon, kNow };
  void set_alarm(Alarm wanted) REQUIRES(mutex_);
  void update_alarm() REQUIRES(mutex_);
  uint64_t last_locked() const REQUIRES(mutex_) { return first_kept_ + kept_.size() - 1; }

  mutable Mutex mutex_;
  CondVar acked_changed_;
  std::deque<JournalEntry> kept_ GUARDED_BY(mutex_);
  // Number of kept_.front(), or of the next entry when none is kept.
  uint64_t first_kept_ GUARDED_BY(mutex_) = 1;
  uint64_t next_out_ GUARDED_BY(mutex_) = 1;  // number of the next entry to hand out
  const size_t entries_max_;
  JournalRing* const ring_ PT_GUARDED_BY(mutex_);
  uint64_t foretold_ GUARDED_BY(mutex_) = 0;    // since the last append
  uint64_t waited_for_ GUARDED_BY(mutex_) = 0;  // highest number that somebody waits for
  Alarm alarm_ GUARDED_BY(mutex_) = Alarm::kOff;
  int timer_fd_;
  std::atomic<uint64_t> acked_{0};
  std::atomic<uint64_t> overflows_{0};
};

}  // namespace kvstore
