// Which entries of a put's stripe may be called stored.
//
// A stripe's runs are sealed one after the other without waiting for the directory; the last one asks the
// segment to wait, and its acknowledgement covers all that this connection has sealed. No IO.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/transport.hpp"

namespace kvstore {

class CoveringCommit {
 public:
  CoveringCommit(TransportBatch& batch, size_t run_count) : batch_(batch), run_count_(run_count) {}

  // Whether the request for this run asks for the commit.
  bool asked_by(size_t run) const { return batch_.ack_committed && run + 1 == run_count_; }
  // The answer to the next run: of the request as a whole, and (when that is OK or NOT_COMMITTED) of its
  // entries. Entries that are sealed but not covered yet are NOT_COMMITTED.
  void answer(const std::vector<uint32_t>& entries, wire::Status reply,
              const std::vector<wire::Status>& statuses);
  size_t answered() const { return answered_; }

 private:
  TransportBatch& batch_;
  const size_t run_count_;
  size_t answered_ = 0;
  std::vector<uint32_t> sealed_;  // and not covered
};

// What a request may wait for its commit: what is left, less what the reply needs to come back in time.
uint32_t commit_timeout_ms(const Deadline& deadline);

}  // namespace kvstore
