#include "segment/budgets.hpp"

#include <algorithm>

#include "protocol/wire.hpp"

namespace kvstore {
namespace {

// A quarter of a pool this small would be less than some single put.
constexpr uint64_t kSmallPoolBytes = 64ull << 20;
// A quarter of a budget is for those who have little of it; where that would be next to nothing there is no such part.
constexpr uint64_t kPartedBytesMin = (64ull << 20) + 1;
constexpr uint64_t kKeptShare = 4;
constexpr uint64_t kSmallHolders = 8;  // that the part has room for, at least
constexpr uint64_t kSmallBytesMax = 16ull << 20;
constexpr uint64_t kSmallBodyBytes = 256ull << 10;
constexpr uint64_t kRegisteredBytesMin = 64ull << 30;
constexpr uint64_t kRegisteredPools = 8;

uint64_t share_of_pool(uint64_t wanted, uint64_t capacity_bytes) {
  if (wanted > 0) return wanted;
  return std::min(capacity_bytes, std::max(capacity_bytes / 4, kSmallPoolBytes));
}

uint64_t share_of(uint64_t limit, double share) {
  return static_cast<uint64_t>(static_cast<double>(limit) * share);
}

void raise_to_small_pool(Budget& budget) {
  const uint64_t least = std::min(budget.limit(), kSmallPoolBytes);
  budget.set_limits(budget.limit(), std::max(budget.session_limit(), least));
}

void keep_for_small(Budget& budget, uint64_t small_max) {
  if (budget.limit() < kPartedBytesMin) return;
  const uint64_t kept = budget.limit() / kKeptShare;
  budget.keep_for_small(kept, std::min(kept / kSmallHolders, small_max));
}

uint64_t registered_limit(const BudgetLimits& limits, uint64_t capacity_bytes) {
  if (limits.registered_bytes_max > 0) return limits.registered_bytes_max;
  return std::max(kRegisteredPools * capacity_bytes, kRegisteredBytesMin);
}

}  // namespace

Budgets::Budgets(const BudgetLimits& limits, uint64_t capacity_bytes, uint64_t pinned_bytes_max)
    : writing_bytes("writing_bytes", share_of_pool(limits.writing_bytes_max, capacity_bytes), 0),
      held_bytes("held_bytes", share_of_pool(limits.held_bytes_max, capacity_bytes), 0),
      pinned_bytes("pinned_bytes", pinned_bytes_max, 0),
      registered_bytes("registered_bytes", registered_limit(limits, capacity_bytes), 0),
      registered_buffers("registered_buffers", limits.registered_buffers_max, kSessionBuffersMax),
      body_bytes("body_bytes", limits.body_bytes_max, wire::kBodyBytesMax),
      connections("connections", UINT64_MAX, 1),
      ungreeted("ungreeted", UINT64_MAX, 1) {
  for (Budget* budget : {&writing_bytes, &held_bytes, &pinned_bytes, &registered_bytes})
    budget->set_limits(budget->limit(), share_of(budget->limit(), limits.session_share_max));
  // A small pool is one client's, mostly.
  if (limits.writing_bytes_max == 0) raise_to_small_pool(writing_bytes);
  if (limits.held_bytes_max == 0) raise_to_small_pool(held_bytes);
  keep_for_small(writing_bytes, kSmallBytesMax);
  keep_for_small(held_bytes, kSmallBytesMax);
  keep_for_small(body_bytes, kSmallBodyBytes);
}

std::array<Budget::Usage, Budgets::kCount> Budgets::usage() const {
  return {writing_bytes.usage(),      held_bytes.usage(), pinned_bytes.usage(), registered_bytes.usage(),
          registered_buffers.usage(), body_bytes.usage(), connections.usage(),  ungreeted.usage()};
}

}  // namespace kvstore
