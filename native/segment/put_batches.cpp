#include "segment/put_batches.hpp"

#include <algorithm>

namespace kvstore {

uint32_t PutBatches::open(uint64_t now_ms) {
  do ++last_;
  while (last_ == 0 || open_.count(last_) != 0);
  open_.emplace(last_, Batch{0, now_ms, 0});
  return last_;
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
    batch =
        batch->second.requests == 0 && batch->second.last_seq <= seq ? open_.erase(batch) : std::next(batch);
}

void PutBatches::expire(uint64_t now_ms) noexcept {
  for (auto batch = open_.begin(); batch != open_.end();)
    batch = batch->second.requests == 0 && batch->second.heard_of_ms + kIdleMsMax <= now_ms
                ? open_.erase(batch)
                : std::next(batch);
}

}  // namespace kvstore
