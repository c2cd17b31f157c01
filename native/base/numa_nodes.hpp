// Memory of chosen NUMA nodes. No state, thread-safe; no library besides the kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvstore {

// Empty when each of the nodes has memory and together they have `bytes` to give; otherwise what is in the way, and the remedy.
std::string numa_limit_in_the_way(const std::vector<uint32_t>& nodes, uint64_t bytes);

// What is allocated in [address, address + size_bytes) from now on comes from these nodes alone; of a shared map it is the file that
// remembers this. Returns 0, or an errno.
int bind_to_numa_nodes(void* address, uint64_t size_bytes, const std::vector<uint32_t>& nodes) noexcept;

}  // namespace kvstore
