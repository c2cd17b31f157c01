// Which entries of a put's stripe may be called stored.
//
// A stripe's runs are sealed one after the other without waiting for the directory. Where it is the only stripe of
// its batch, the last run asks the segment to wait, and its acknowledgement covers all that this connection has
// sealed. Where there are several, none asks: one COMMIT of the highest journal number covers the sealed entries of
// them all. No IO.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/transport.hpp"
#include "protocol/data_codec.hpp"

namespace kvstore {

class CoveringCommit {
 public:
  // `asks`: the last run asks for the commit; otherwise covered() tells of one.
  CoveringCommit(TransportBatch& batch, size_t run_count, bool asks)
      : batch_(batch), run_count_(run_count), asks_(asks) {}

  // Whether the request for this run asks for the commit.
  bool asked_by(size_t run) const { return batch_.ack_committed && asks_ && run + 1 == run_count_; }
  // The answer to the next run: of the request as a whole, and (when that is OK or NOT_COMMITTED) of its
  // entries. Entries that are sealed but not covered yet are NOT_COMMITTED.
  void answer(const std::vector<uint32_t>& entries, wire::Status reply, const data_codec::PutAnswer& put);
  size_t answered() const { return answered_; }
  // The journal number to wait for so that what is sealed and not covered is durable; 0: there is nothing.
  uint64_t journal_seq() const { return journal_seq_; }
  // Everything up to journal_seq() is durable.
  void covered();

 private:
  TransportBatch& batch_;
  const size_t run_count_;
  const bool asks_;
  size_t answered_ = 0;
  std::vector<uint32_t> sealed_;  // and not covered
  uint64_t journal_seq_ = 0;
};

// What a request may wait for its commit: what is left, less what the reply needs to come back in time.
uint32_t commit_timeout_ms(const Deadline& deadline);

}  // namespace kvstore
