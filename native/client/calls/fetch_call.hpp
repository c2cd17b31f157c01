// fetch in two halves, because the caller allocates in between: how long what is there is; then a get of
// exactly that.
#pragma once

#include <cstdint>
#include <vector>

#include "client/calls/page_call.hpp"

namespace kvstore {

// The first half. Entries are UNAVAILABLE (to be fetched), MISS or TOO_LARGE after run().
class FetchLengthsCall : public PageCall {
 public:
  FetchLengthsCall(Cluster& cluster, const KeyBlock& keys, uint64_t bytes_max, const Deadline& deadline,
                   uint8_t* statuses)
      : PageCall(cluster, keys, all_entries(keys), deadline, statuses),
        bytes_max_(bytes_max),
        lengths_(keys.entry_count(), 0) {}

  // 0 for what is not there or would exceed bytes_max in total.
  const std::vector<uint32_t>& lengths() const { return lengths_; }

 private:
  Attempt attempt() override;

  const uint64_t bytes_max_;
  std::vector<uint32_t> lengths_;
};

// Entries of which there is something to get: the second half is a GetCall of these.
std::vector<uint32_t> fetched_entries(const std::vector<uint32_t>& lengths);

}  // namespace kvstore
