#include "client/connection/covering_commit.hpp"

#include <algorithm>

#include "protocol/data_codec.hpp"

namespace kvstore {

using wire::Status;

void CoveringCommit::answer(const std::vector<uint32_t>& entries, Status reply,
                            const data_codec::PutAnswer& put) {
  const bool last = ++answered_ == run_count_;
  const bool committed = reply == Status::kOk && last && asks_;
  if (reply != Status::kOk && reply != Status::kNotCommitted) {
    for (const uint32_t entry : entries) batch_.set_status(entry, data_codec::known_status(unsigned(reply)));
  } else {
    const bool covered = !batch_.ack_committed || committed;
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool waits = put.statuses[i] == Status::kOk && !covered;
      if (waits) sealed_.push_back(entries[i]);
      batch_.set_status(entries[i], waits ? Status::kNotCommitted : put.statuses[i]);
    }
  }
  if (committed)
    covered();
  else if (batch_.ack_committed)
    journal_seq_ = std::max(journal_seq_, put.journal_seq);
}

void CoveringCommit::covered() {
  for (const uint32_t entry : sealed_) batch_.set_status(entry, Status::kOk);
  sealed_.clear();
  journal_seq_ = 0;
}

uint32_t commit_timeout_ms(const Deadline& deadline) {
  const int64_t left = deadline.left_ms();
  return static_cast<uint32_t>(std::max<int64_t>(left - std::clamp<int64_t>(left / 10, 5, 50), 1));
}

}  // namespace kvstore
