#include "segment/put_batches.hpp"

#include <algorithm>
#include <utility>

namespace kvstore {

uint32_t PutBatches::open(uint64_t now_ms) {
  do ++last_;
  while (last_ == 0 || open_.count(last_) != 0);
  const auto idle = idle_.emplace(0, last_).first;
  try {
    open_[last_].heard_of_ms = now_ms;
  } catch (...) {
    idle_.erase(idle);
    throw;
  }
  return last_;
}

bool PutBatches::keep(uint32_t batch, uint64_t bytes) noexcept {
  const auto found = open_.find(batch);
  if (found == open_.end() || found->second.lost) return false;
  const uint64_t has = found->second.kept_bytes;
  if (has > batch_bytes_max_ || bytes > batch_bytes_max_ - has) return false;
  found->second.kept_bytes += bytes;
  kept_bytes_ += bytes;
  while (kept_bytes_ > bytes_max_) lose_largest();
  return !found->second.lost;
}

void PutBatches::lose_largest() noexcept {
  const auto largest = std::max_element(open_.begin(), open_.end(), [](const auto& a, const auto& b) {
    return a.second.kept_bytes < b.second.kept_bytes;
  });
  kept_bytes_ -= largest->second.kept_bytes;
  largest->second.kept_bytes = 0;
  largest->second.lost = true;
}

PutBatches::Open::iterator PutBatches::close(Open::iterator batch) noexcept {
  kept_bytes_ -= batch->second.kept_bytes;
  idle_.erase({batch->second.last_seq, batch->first});
  return open_.erase(batch);
}

void PutBatches::close(uint32_t batch) noexcept {
  if (const auto found = open_.find(batch); found != open_.end()) close(found);
}

bool PutBatches::begin_request(uint32_t batch, uint64_t now_ms) {
  const auto found = open_.find(batch);
  if (found == open_.end()) return false;
  Batch& begun = found->second;
  begun.heard_of_ms = now_ms;
  if (begun.requests++ == 0) begun.idle = idle_.extract({begun.last_seq, batch});
  return true;
}

void PutBatches::end_request(uint32_t batch, uint64_t seq, uint64_t now_ms) noexcept {
  const auto found = open_.find(batch);
  if (found == open_.end() || found->second.requests == 0) return;
  Batch& ended = found->second;
  ended.last_seq = std::max(ended.last_seq, seq);
  ended.heard_of_ms = now_ms;
  if (--ended.requests > 0) return;
  ended.idle.value() = {ended.last_seq, batch};
  idle_.insert(std::move(ended.idle));
}

void PutBatches::close_up_to(uint64_t seq) noexcept {
  while (!idle_.empty() && idle_.begin()->first <= seq) close(idle_.begin()->second);
}

void PutBatches::expire(uint64_t now_ms) noexcept {
  if (now_ms < next_expiry_ms_) return;
  // Of one that is opened, or has a request running, the time begins now at the earliest.
  next_expiry_ms_ = now_ms + kIdleMsMax;
  for (auto batch = open_.begin(); batch != open_.end();) {
    const uint64_t end_ms = batch->second.heard_of_ms + kIdleMsMax;
    if (batch->second.requests == 0 && end_ms <= now_ms) {
      batch = close(batch);
      continue;
    }
    if (batch->second.requests == 0) next_expiry_ms_ = std::min(next_expiry_ms_, end_ms);
    ++batch;
  }
}

}  // namespace kvstore
