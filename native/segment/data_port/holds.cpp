#include "segment/data_port/holds.hpp"

#include <algorithm>

namespace kvstore {

SessionHolds::~SessionHolds() {
  while (!holds_.empty()) release(holds_.begin());
}

std::list<SessionHolds::Hold>::iterator SessionHolds::release(std::list<Hold>::iterator hold) noexcept {
  slots_held_ -= hold->reads.size();
  store_.release_reads(hold->reads);
  return holds_.erase(hold);
}

void SessionHolds::add(uint32_t locate_id, std::vector<ReadEntry>& reads, Clock::time_point deadline) {
  holds_.push_back({locate_id, {}, deadline});  // may throw: the reads are the caller's until then
  holds_.back().reads.swap(reads);
  slots_held_ += holds_.back().reads.size();
  // The generation check keeps a reader whose hold is lost this way from taking wrong bytes: it gets a miss.
  while (holds_.size() > 1 && (holds_.size() > kLocatesMax || slots_held_ > kSlotsMax))
    release(holds_.begin());
}

void SessionHolds::drop(uint32_t locate_id) {
  for (auto hold = holds_.begin(); hold != holds_.end();)
    hold = hold->locate_id == locate_id ? release(hold) : std::next(hold);
}

void SessionHolds::expire(Clock::time_point now) {
  for (auto hold = holds_.begin(); hold != holds_.end();)
    hold = hold->deadline <= now ? release(hold) : std::next(hold);
}

SessionHolds::Clock::time_point SessionHolds::next_deadline() const {
  auto next = Clock::time_point::max();
  for (const Hold& hold : holds_) next = std::min(next, hold.deadline);
  return next;
}

}  // namespace kvstore
