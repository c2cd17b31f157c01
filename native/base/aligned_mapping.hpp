// A shared map of a file whose address is a multiple of what huge pages need.
#pragma once

#include <cstdint>

namespace kvstore {

// Maps [0, size_bytes) of the file at a multiple of `alignment`, a power of two and at least a page: only where file and address
// agree in their offset within a huge page can the kernel map one by one entry. Null with errno set when it can't be had;
// otherwise for ::munmap(address, size_bytes).
uint8_t* map_file_aligned(int fd, uint64_t size_bytes, int protection, uint64_t alignment) noexcept;

}  // namespace kvstore
