// Copies objects from other segments into this one, as a master orders: asks for them by fingerprint (FETCH), reserves, receives,
// compares digests, seals and journals as for any put. An order is worked off in runs of about 4 MiB, one at a time, so that no more
// than that is on its way; between runs it waits as long as its rate asks for. Nothing of an order outlasts it: what was sealed is
// in the journal, and whoever orders the rest again is told EXISTS of that.
//
// Thread-safe: orders run on their callers' threads, and share the rate.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "base/mutex.hpp"
#include "client/connection/frame_connection.hpp"
#include "segment/copying/copy_order.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {

class ObjectCopier {
 public:
  static constexpr uint64_t kRunBytes = 4u << 20;
  static constexpr size_t kRunObjects = 256;
  static constexpr auto kCommitWait = std::chrono::seconds(5);
  static constexpr auto kTimeoutMax = std::chrono::minutes(10);

  // `token`: what a client presents to segments.
  ObjectCopier(std::shared_ptr<SegmentStore> store, std::string token);

  // Within its timeout and kCommitWait, or moments after `cancelled` was set. Throws std::invalid_argument for an order that
  // can't be.
  CopyOutcome copy(const CopyOrder& order, const std::atomic<bool>& cancelled);
  // Sets it, and wakes who waits for a commit.
  void cancel(std::atomic<bool>& cancelled);

 private:
  using Clock = std::chrono::steady_clock;

  NetStatus connect(const CopyOrder& order, const Deadline& deadline,
                    std::unique_ptr<FrameConnection>* connection) const;
  // Waits until the rate allows more; false: the deadline comes before. The next waits for what this one has moved.
  bool wait_turn(const Deadline& deadline) EXCLUDES(mutex_);
  void took(uint64_t bytes, uint64_t bytes_per_s) EXCLUDES(mutex_);

  const std::shared_ptr<SegmentStore> store_;
  const HelloOptions hello_;
  Mutex mutex_;
  Clock::time_point next_run_ GUARDED_BY(mutex_){};
};

}  // namespace kvstore
