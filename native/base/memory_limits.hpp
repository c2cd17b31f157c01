// What the system will let this process allocate. Reads /proc and the cgroup file system; no state,
// thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace kvstore {

struct MemoryNeed {
  uint64_t map_bytes = 0;            // of address space, and of one file
  uint64_t new_bytes = 0;            // to be allocated yet
  bool locked = false;               // all of the map, in memory
  bool from_reserved_pages = false;  // huge pages that were set aside: they are no part of what is available
};

// Empty when that much shared memory can be had; otherwise which limit is in the way, its value, and how to raise it. A check and
// not a reservation: the allocation itself can still fail.
std::string memory_limit_in_the_way(const MemoryNeed& need);

}  // namespace kvstore
