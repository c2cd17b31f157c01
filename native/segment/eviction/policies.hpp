// Factories, one a policy file; eviction_policy.cpp knows their names.
#pragma once

#include <cstdint>
#include <memory>

#include "segment/eviction/ranked_policy.hpp"

namespace kvstore {

std::unique_ptr<EvictionPolicy> make_lru_policy(uint32_t slot_count);
std::unique_ptr<EvictionPolicy> make_lrfu_policy(uint32_t slot_count);
std::unique_ptr<EvictionPolicy> make_two_queue_policy(uint32_t slot_count);
std::unique_ptr<EvictionPolicy> make_interval_policy(uint32_t slot_count);
std::unique_ptr<EvictionPolicy> make_adaptive_policy(uint32_t slot_count);

}  // namespace kvstore
