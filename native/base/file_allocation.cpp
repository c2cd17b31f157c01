#include "base/file_allocation.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/signals_blocked.hpp"

namespace kvstore {

int allocate_file(int fd, uint64_t size_bytes, const std::atomic<bool>* cancelled) noexcept {
  // A signal makes the kernel undo the whole step: with a profiler's timer a large one would never get done.
  constexpr uint64_t kStepBytes = 64ull << 20;
  for (uint64_t at = 0; at < size_bytes;) {
    if (cancelled != nullptr && cancelled->load()) return ECANCELED;
    const uint64_t step = std::min(kStepBytes, size_bytes - at);
    const SignalsBlocked blocked;
    if (::fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(step)) == 0)
      at += step;
    else if (errno != EINTR)
      return errno;
  }
  return 0;
}

}  // namespace kvstore
