#include "segment/journal.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace kvstore {
namespace {

// How long an entry that nobody waits for may lie: long enough for the next runs of its batch to join it,
// short beside anything that a reader of the directory would notice.
constexpr long kSoonNs = 3'000'000;
// So many entries are worth a message of their own whoever waits.
constexpr uint64_t kEagerEntries = 4096;

}  // namespace

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

Journal::Journal(size_t entries_max, JournalRing* ring, const JournalRing::Recovered& recovered)
    : kept_(recovered.entries.begin(), recovered.entries.end()),
      first_kept_(recovered.first_seq),
      next_out_(recovered.first_seq),
      entries_max_(std::max<size_t>(entries_max, 1)),
      ring_(ring),
      acked_(recovered.acked_seq) {
  timer_fd_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (timer_fd_ < 0) throw std::system_error(errno, std::generic_category(), "timerfd for the journal");
}

Journal::~Journal() { ::close(timer_fd_); }

void Journal::set_alarm(Alarm wanted) {
  if (wanted == alarm_) return;
  itimerspec when{};  // all zero: off, and what has fired is forgotten
  if (wanted == Alarm::kSoon) when.it_value.tv_nsec = kSoonNs;
  if (wanted == Alarm::kNow) when.it_value.tv_nsec = 1;
  // Can't fail with a valid descriptor and valid times; were it to, the next change would try again.
  if (::timerfd_settime(timer_fd_, 0, &when, nullptr) == 0) alarm_ = wanted;
}

void Journal::update_alarm() {
  const uint64_t last = last_locked();
  if (next_out_ > last) return set_alarm(Alarm::kOff);
  const bool urgent = waited_for_ >= next_out_ || last + 1 - next_out_ >= kEagerEntries;
  if (urgent)
    set_alarm(Alarm::kNow);
  else if (alarm_ == Alarm::kOff)
    set_alarm(Alarm::kSoon);
}

uint64_t Journal::append(const std::vector<JournalEntry>& entries) noexcept {
  const MutexLock lock(mutex_);
  const uint64_t first = last_locked() + 1;
  if (ring_ != nullptr) {
    ring_->append(first, entries.data(), entries.size());
    for (uint64_t ahead = entries.size(); ahead < foretold_; ++ahead) ring_->take_back(first + ahead);
    foretold_ = 0;
  }
  try {
    kept_.insert(kept_.end(), entries.begin(), entries.end());
  } catch (const std::exception&) {  // std::deque gives the strong guarantee at its end
    overflows_.fetch_add(1, std::memory_order_relaxed);
    kept_.clear();
    first_kept_ = next_out_ = first + entries.size();
    update_alarm();
    return first;
  }
  if (kept_.size() > entries_max_) {
    overflows_.fetch_add(1, std::memory_order_relaxed);
    const uint64_t handed_out = next_out_ - first_kept_;
    const uint64_t drop = kept_.size() - handed_out <= entries_max_ ? handed_out : kept_.size();
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(drop));
    first_kept_ += drop;
    next_out_ = std::max(next_out_, first_kept_);
  }
  update_alarm();
  return first;
}

void Journal::foretell(const JournalEntry& entry) noexcept {
  if (ring_ == nullptr) return;
  const MutexLock lock(mutex_);
  ring_->foretell(last_locked() + 1 + foretold_++, entry);
}

void Journal::lose(uint64_t numbers) noexcept {
  const MutexLock lock(mutex_);
  const uint64_t lost = last_locked() + numbers;
  if (ring_ != nullptr) ring_->lose(lost);
  kept_.clear();
  first_kept_ = next_out_ = lost + 1;
  update_alarm();
}

uint64_t Journal::last_seq() const {
  const MutexLock lock(mutex_);
  return last_locked();
}

uint64_t Journal::oldest_kept_seq() const {
  const MutexLock lock(mutex_);
  return first_kept_;
}

size_t Journal::backlog() const {
  const MutexLock lock(mutex_);
  return kept_.size();
}

std::optional<Journal::Batch> Journal::drain(size_t entries_max) {
  std::vector<JournalEntry> taken;
  Batch batch{};
  {
    const MutexLock lock(mutex_);
    const uint64_t last = last_locked();
    if (next_out_ <= last && entries_max > 0) {
      const auto count = std::min<uint64_t>(entries_max, last + 1 - next_out_);
      const auto from = kept_.begin() + static_cast<ptrdiff_t>(next_out_ - first_kept_);
      taken.assign(from, from + static_cast<ptrdiff_t>(count));
      batch.first_seq = next_out_;
      batch.last_seq = next_out_ + count - 1;
      next_out_ += count;
    }
    update_alarm();
    if (next_out_ <= last) set_alarm(Alarm::kNow);  // the batch was full: the rest is due too
  }
  if (taken.empty()) return std::nullopt;
  write_journal_groups(taken.data(), taken.size(), batch.groups);
  return batch;
}

void Journal::ack(uint64_t seq) {
  {
    const MutexLock lock(mutex_);
    if (seq > last_locked())
      throw std::invalid_argument("journal ack of " + std::to_string(seq) + ", but the last entry is " +
                                  std::to_string(last_locked()));
    if (seq <= acked_.load(std::memory_order_relaxed)) return;
    acked_.store(seq, std::memory_order_release);
    if (ring_ != nullptr) ring_->ack(seq);
    if (seq >= first_kept_) {
      kept_.erase(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(seq + 1 - first_kept_));
      first_kept_ = seq + 1;
    }
    next_out_ = std::max(next_out_, seq + 1);
    update_alarm();
  }
  acked_changed_.notify_all();
}

bool Journal::rewind(uint64_t seq) {
  const MutexLock lock(mutex_);
  if (seq + 1 < first_kept_ || seq > last_locked()) return false;
  next_out_ = seq + 1;
  update_alarm();
  return true;
}

uint64_t Journal::skip_to_end() {
  const MutexLock lock(mutex_);
  next_out_ = last_locked() + 1;
  update_alarm();
  return last_locked();
}

bool Journal::wait_acked(uint64_t seq, Clock::time_point deadline, const std::atomic<bool>& cancelled) {
  if (acked_seq() >= seq) return true;
  const MutexLock lock(mutex_);
  waited_for_ = std::max(waited_for_, std::min(seq, last_locked()));
  update_alarm();
  while (acked_seq() < seq && !cancelled.load() &&
         acked_changed_.wait_until(mutex_, deadline) == std::cv_status::no_timeout) {
  }
  return acked_seq() >= seq;
}

void Journal::interrupt() {
  {
    const MutexLock lock(mutex_);
  }  // a waiter between its check and its sleep must not miss this
  acked_changed_.notify_all();
}

}  // namespace kvstore
