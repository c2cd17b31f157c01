// Takes the memory of an in-memory file in advance, so that running out of it is an error now and not a SIGBUS later.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvstore {

// Allocates [0, size_bytes) of the file, whatever signals arrive meanwhile; they are handled every few milliseconds. Returns 0, or
// the errno of the step that failed; ECANCELED once `cancelled`, which may be null, is set.
int allocate_file(int fd, uint64_t size_bytes, const std::atomic<bool>* cancelled = nullptr) noexcept;

}  // namespace kvstore
