// What the system will let this process allocate. Reads /proc and the cgroup file system; no state,
// thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace kvstore {

// Empty when `bytes` of shared memory can be had (locked in memory, if `locked`); otherwise which limit is in
// the way, its value, and how to raise it. A check and not a reservation: the allocation itself can still
// fail.
std::string memory_limit_in_the_way(uint64_t bytes, bool locked);

}  // namespace kvstore
