#include "segment/put_batches.hpp"

#include <algorithm>

namespace kvstore {

uint32_t PutBatches::open(uint64_t now_ms) {
  do ++last_;
  while (last_ == 0 || open_.count(last_) != 0);
  open_.emplace(last_, Batch{0, now_ms});
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
  return open_.erase(batch);
}

void PutBatches::close(uint32_t batch) noexcept {
  if (const auto found = open_.find(batch); found != open_.end()) close(found);
}

bool PutBatches::begin_request(uint32_t batch, uint64_t now_ms) {
  const auto found = open_.find(batch);
  if (found == open_.end()) return false;
  found->second.heard_of_ms = now_ms;
  ++found->second.requests;
  return true;
}

void PutBatches::end_request(uint32_t batch, uint64_t seq, uint64_t now_ms) noexcept {
  const auto found = open_.find(batch);
  if (found == open_.end()) return;
  found->second.last_seq = std::max(found->second.last_seq, seq);
  found->second.heard_of_ms = now_ms;
  if (found->second.requests > 0) --found->second.requests;
}

void PutBatches::close_up_to(uint64_t seq) noexcept {
  for (auto batch = open_.begin(); batch != open_.end();)
    batch = batch->second.requests == 0 && batch->second.last_seq <= seq ? close(batch) : std::next(batch);
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
