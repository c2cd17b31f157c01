// What this process has mapped where, as the kernel tells.
#pragma once

#include <cstdint>

namespace kvstore {

// Whether [address, address + size_bytes) is a shared mapping of this file, byte 0 of the file at `address`: what is written to the
// memory is then what a reader of the descriptor gets. False also when the kernel does not tell.
bool is_shared_mapping_of(uint64_t address, uint64_t size_bytes, int fd) noexcept;

// How much of [address, address + size_bytes) is mapped by huge pages, which take next to no page tables. 0 when the kernel does not
// tell (before 6.7).
uint64_t huge_mapped_bytes(const void* address, uint64_t size_bytes) noexcept;

}  // namespace kvstore
