// Takes the memory of an in-memory file in advance, so that running out of it is an error now and not a SIGBUS later.
#pragma once

#include <cstdint>

namespace kvstore {

// Allocates [0, size_bytes) of the file, whatever signals arrive meanwhile; they are handled every few milliseconds. Returns 0, or
// the errno of the step that failed.
int allocate_file(int fd, uint64_t size_bytes) noexcept;

}  // namespace kvstore
