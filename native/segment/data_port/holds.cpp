#include "segment/data_port/holds.hpp"

#include <algorithm>

namespace kvstore {
namespace {

// What a copy may take while others wait: a copy that loses its hold notices when its slot has changed.
constexpr auto kContendedHold = std::chrono::milliseconds(250);
constexpr auto kLookAgain = std::chrono::milliseconds(200);

}  // namespace

SessionHolds::~SessionHolds() {
  while (!holds_.empty()) release(holds_.begin());
}

std::list<SessionHolds::Hold>::iterator SessionHolds::release(std::list<Hold>::iterator hold) noexcept {
  slots_held_ -= hold->reads.size();
  bytes_held_ -= hold->bytes;
  store_.release_reads(hold->reads);
  return holds_.erase(hold);
}

void SessionHolds::add(uint32_t locate_id, std::vector<ReadEntry>& reads, Clock::time_point deadline) {
  uint64_t bytes = 0;
  for (const ReadEntry& read : reads)
    if (read.slot != kNoSlot) bytes += read.length;
  holds_.push_back(
      {locate_id, {}, Clock::now(), deadline, bytes});  // may throw: the reads are the caller's until then
  holds_.back().reads.swap(reads);
  slots_held_ += holds_.back().reads.size();
  bytes_held_ += bytes;
  Budget& budget = store_.budgets().held_bytes;
  // The generation check keeps a reader whose hold is lost this way from taking wrong bytes: it gets a miss.
  while (holds_.size() > 1 &&
         (holds_.size() > kLocatesMax || slots_held_ > kSlotsMax || bytes_held_ > budget.session_limit())) {
    budget.count_refused();
    release(holds_.begin());
  }
}

void SessionHolds::drop(uint32_t locate_id) {
  for (auto hold = holds_.begin(); hold != holds_.end();)
    hold = hold->locate_id == locate_id ? release(hold) : std::next(hold);
}

void SessionHolds::expire(Clock::time_point now) {
  const bool contended = store_.budgets().held_bytes.is_contended();
  for (auto hold = holds_.begin(); hold != holds_.end();) {
    const bool over = hold->deadline <= now || (contended && now - hold->since >= kContendedHold);
    hold = over ? release(hold) : std::next(hold);
  }
}

SessionHolds::Clock::time_point SessionHolds::next_deadline() const {
  if (holds_.empty()) return Clock::time_point::max();
  auto next = Clock::now() + kLookAgain;
  for (const Hold& hold : holds_) next = std::min(next, hold.deadline);
  return next;
}

}  // namespace kvstore
