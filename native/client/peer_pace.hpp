// How fast a segment has served this client's gets lately: what tells a loaded holder from an idle one.
//
// Thread-safe. No clock of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/deadline.hpp"

namespace kvstore {

class PeerPace {
 public:
  using Time = Deadline::Clock::time_point;

  // Whoever is slow is not asked, and so has to be forgiven some day.
  static constexpr auto kRemembered = std::chrono::seconds(2);
  // What a get of nothing counts as: small ones cost a round trip and not their bytes.
  static constexpr uint64_t kRequestBytes = 256u << 10;

  // `bytes` have come in `took`, up to `now`.
  void served(uint64_t bytes, Deadline::Clock::duration took, Time now) {
    const auto took_us = std::chrono::duration_cast<std::chrono::microseconds>(took).count();
    const auto fresh = static_cast<uint64_t>(took_us) * (1u << 20) / (bytes + kRequestBytes) + 1;
    const uint64_t old = us_per_mib(now);
    us_per_mib_.store(old == 0 ? fresh : (3 * old + fresh) / 4, std::memory_order_relaxed);
    served_at_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  // 0: nothing is known of the last while.
  uint64_t us_per_mib(Time now) const {
    const Time at{Deadline::Clock::duration(served_at_.load(std::memory_order_relaxed))};
    return now - at < kRemembered ? us_per_mib_.load(std::memory_order_relaxed) : 0;
  }

 private:
  // Two that get here at once lose one of two measurements.
  std::atomic<uint64_t> us_per_mib_{0};
  std::atomic<Deadline::Clock::rep> served_at_{0};
};

}  // namespace kvstore
