// All that the peers of a segment can have it hold, each with its cap. Every peer is bounded, whether it has a
// token or not: nobody can empty, lock or outgrow the segment (docs/decisions/0033).
#pragma once

#include <array>
#include <cstdint>

#include "segment/budget.hpp"

namespace kvstore {

// 0: by the size of the pool.
struct BudgetLimits {
  uint64_t writing_bytes_max = 0;     // a quarter of the pool; of a small one more
  uint64_t held_bytes_max = 0;        // the same
  uint64_t registered_bytes_max = 0;  // eight times the pool: their page tables then take 1/64 of it
  uint32_t registered_buffers_max = 4096;
  uint64_t body_bytes_max = 256u << 20;
  // What one connection may have of each.
  double session_share_max = 0.5;
};

class Budgets {
 public:
  static constexpr uint32_t kSessionBuffersMax = 256;  // docs/protocol.md section 1
  static constexpr size_t kCount = 8;
  static constexpr size_t kPinnedAt = 2;  // in usage()

  Budgets(const BudgetLimits& limits, uint64_t capacity_bytes, uint64_t pinned_bytes_max);

  Budget writing_bytes;       // slots that puts under way have reserved
  Budget held_bytes;          // objects that readers keep from reuse, each counted once
  Budget pinned_bytes;        // kept by the pin table; told here
  Budget registered_bytes;    // of clients' memory, mapped: what is over the cap is read in a slower way
  Budget registered_buffers;  // descriptors of clients
  Budget body_bytes;          // of request bodies over 64 KiB
  Budget connections;         // that have said HELLO; kept by the data server, told here
  Budget ungreeted;           // that have not; the same

  // In the order of docs/protocol.md section 9.
  std::array<Budget::Usage, kCount> usage() const;
};

}  // namespace kvstore
