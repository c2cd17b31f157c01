// The slots that a same-host client has located and may be copying from: kept from reuse until UNPIN, their
// time is over, or the connection ends; and no longer than a copy takes while others wait for what is held. One
// session's, one thread's.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "segment/segment_store.hpp"

namespace kvstore {

class SessionHolds {
 public:
  using Clock = SegmentStore::Clock;
  static constexpr size_t kLocatesMax =
      1024;  // a connection that forgets UNPIN loses its oldest holds beyond these
  static constexpr size_t kSlotsMax = 262144;

  explicit SessionHolds(SegmentStore& store) : store_(store) {}
  ~SessionHolds();
  SessionHolds(const SessionHolds&) = delete;
  SessionHolds& operator=(const SessionHolds&) = delete;

  // Takes over reads that were acquired from the store; an exception leaves them where they are.
  void add(uint32_t locate_id, std::vector<ReadEntry>& reads, Clock::time_point deadline);
  void drop(uint32_t locate_id);
  void expire(Clock::time_point now);
  uint64_t bytes() const { return bytes_held_; }
  // When expire() may have something to do again; time_point::max() when nothing is held.
  Clock::time_point next_deadline() const;

 private:
  struct Hold {
    uint32_t locate_id;
    std::vector<ReadEntry> reads;
    Clock::time_point since, deadline;
    uint64_t bytes;
  };
  std::list<Hold>::iterator release(std::list<Hold>::iterator hold) noexcept;

  SegmentStore& store_;
  std::list<Hold> holds_;  // oldest first
  size_t slots_held_ = 0;
  uint64_t bytes_held_ = 0;
};

}  // namespace kvstore
