#include "kvstore/journal.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace kvstore {

void write_journal_groups(const JournalEntry* entries, size_t count, std::vector<uint8_t>& out) {
  const auto raw = [&out](const void* data, size_t n) {
    const auto* p = static_cast<const uint8_t*>(data);
    out.insert(out.end(), p, p + n);
  };
  for (size_t start = 0; start < count;) {
    size_t end = start + 1;
    while (end < count && entries[end].op == entries[start].op && entries[end].ns == entries[start].ns) ++end;
    const uint8_t op[4] = {static_cast<uint8_t>(entries[start].op), 0, 0, 0};
    const auto n = static_cast<uint32_t>(end - start);
    out.reserve(out.size() + 16 + size_t{n} * (kFingerprintBytes + 4));
    raw(op, sizeof(op));
    raw(&n, sizeof(n));
    raw(entries[start].ns.data(), kNamespaceBytes);
    for (size_t i = start; i < end; ++i) raw(&entries[i].fp, kFingerprintBytes);
    for (size_t i = start; i < end; ++i) raw(&entries[i].length, 4);
    start = end;
  }
}

Journal::Journal(size_t entries_max) : entries_max_(std::max<size_t>(entries_max, 1)) {
  event_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd for the journal");
}

Journal::~Journal() { ::close(event_fd_); }

void Journal::signal_if_pending() {
  const bool pending = next_out_ <= last_locked();
  if (pending == signalled_) return;
  uint64_t count = 1;
  // The counter stays at 0 or 1, so neither call can block; a failure would only be a spurious or late
  // wake-up.
  const ssize_t done =
      pending ? ::write(event_fd_, &count, sizeof(count)) : ::read(event_fd_, &count, sizeof(count));
  if (done == static_cast<ssize_t>(sizeof(count))) signalled_ = pending;
}

uint64_t Journal::append(const std::vector<JournalEntry>& entries) {
  const std::lock_guard lock(mutex_);
  const uint64_t first = last_locked() + 1;
  kept_.insert(kept_.end(), entries.begin(), entries.end());
  if (kept_.size() > entries_max_) {
    overflows_.fetch_add(1, std::memory_order_relaxed);
    const uint64_t handed_out = next_out_ - first_kept_;
    const uint64_t drop = kept_.size() - handed_out <= entries_max_ ? handed_out : kept_.size();
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(drop));
    first_kept_ += drop;
    next_out_ = std::max(next_out_, first_kept_);
  }
  signal_if_pending();
  return first;
}

uint64_t Journal::last_seq() const {
  const std::lock_guard lock(mutex_);
  return last_locked();
}

uint64_t Journal::oldest_kept_seq() const {
  const std::lock_guard lock(mutex_);
  return first_kept_;
}

size_t Journal::backlog() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

std::optional<Journal::Batch> Journal::drain(size_t entries_max) {
  std::vector<JournalEntry> taken;
  Batch batch{};
  {
    const std::lock_guard lock(mutex_);
    const uint64_t last = last_locked();
    if (next_out_ <= last && entries_max > 0) {
      const auto count = std::min<uint64_t>(entries_max, last + 1 - next_out_);
      const auto from = kept_.begin() + static_cast<ptrdiff_t>(next_out_ - first_kept_);
      taken.assign(from, from + static_cast<ptrdiff_t>(count));
      batch.first_seq = next_out_;
      batch.last_seq = next_out_ + count - 1;
      next_out_ += count;
    }
    signal_if_pending();
  }
  if (taken.empty()) return std::nullopt;
  write_journal_groups(taken.data(), taken.size(), batch.groups);
  return batch;
}

void Journal::ack(uint64_t seq) {
  {
    const std::lock_guard lock(mutex_);
    if (seq > last_locked())
      throw std::invalid_argument("journal ack of " + std::to_string(seq) + ", but the last entry is " +
                                  std::to_string(last_locked()));
    if (seq <= acked_.load(std::memory_order_relaxed)) return;
    acked_.store(seq, std::memory_order_release);
    if (seq >= first_kept_) {
      kept_.erase(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(seq + 1 - first_kept_));
      first_kept_ = seq + 1;
    }
    next_out_ = std::max(next_out_, seq + 1);
    signal_if_pending();
  }
  acked_changed_.notify_all();
}

bool Journal::rewind(uint64_t seq) {
  const std::lock_guard lock(mutex_);
  if (seq + 1 < first_kept_ || seq > last_locked()) return false;
  next_out_ = seq + 1;
  signal_if_pending();
  return true;
}

uint64_t Journal::skip_to_end() {
  const std::lock_guard lock(mutex_);
  next_out_ = last_locked() + 1;
  signal_if_pending();
  return last_locked();
}

bool Journal::wait_acked(uint64_t seq, Clock::time_point deadline, const std::atomic<bool>& cancelled) {
  if (acked_seq() >= seq) return true;
  std::unique_lock lock(mutex_);
  acked_changed_.wait_until(lock, deadline, [&] { return acked_seq() >= seq || cancelled.load(); });
  return acked_seq() >= seq;
}

void Journal::interrupt() {
  {
    const std::lock_guard lock(mutex_);
  }  // a waiter between its check and its sleep must not miss this
  acked_changed_.notify_all();
}

}  // namespace kvstore
