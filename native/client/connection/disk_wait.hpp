// How long a segment may wait for its disk before it answers a request without what lies there: part of the time that is
// left, so that the answer is here in time, and the rest can be tried elsewhere.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/deadline.hpp"

namespace kvstore {

// Milliseconds, at least 1: 0 on the wire is a client that says nothing.
inline uint32_t disk_wait_ms(const Deadline& deadline) {
  const int64_t left_ms = std::min(deadline.left_ms(), deadline.of_one_wait().left_ms());
  return static_cast<uint32_t>(std::clamp<int64_t>(left_ms * 3 / 4, 1, Deadline::kMsMax));
}

}  // namespace kvstore
