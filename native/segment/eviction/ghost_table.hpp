// What is remembered of objects after they were evicted: of five times as many as are kept, in some 40 bytes an
// object. A ghost is four bytes: 14 bits of the object's id, the time when it was evicted in coarse ticks, and seven
// bits that the ranking wrote. Ghosts go in the order in which they came, so that those of one prefix come and go
// together: what is remembered of half a prefix makes a hole in it. One look-up in a thousand finds another
// object's ghost: that costs a wrong guess, never more. Not thread-safe: the owner locks.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>

namespace kvstore {

class GhostTable {
 public:
  static constexpr uint32_t kGhostsAnObject = 5;

  struct Ghost {
    uint8_t memory = 0;  // 7 bits
    uint32_t gap = 0;    // since it was evicted
  };

  // There are this many objects: makes room for their ghosts. Where memory is short it stays as it is.
  void make_room(uint32_t object_count) noexcept;
  // Times count accesses, and may wrap around.
  void put(uint64_t id, uint8_t memory, uint32_t now) noexcept;
  // Finds it, and forgets it.
  std::optional<Ghost> take(uint64_t id, uint32_t now) noexcept;

  uint32_t size() const { return size_; }

 private:
  static constexpr uint32_t kWays = 16;   // of a bucket, which is as long as a cache line
  static constexpr uint32_t kFilled = 8;  // of these on average, so that hardly any bucket overflows
  static constexpr uint32_t kFirstBlockBits = 5;
  static constexpr uint32_t kTickBits = 11;
  static constexpr uint32_t kTickMask = (1u << kTickBits) - 1;
  struct Bucket {
    std::array<uint32_t, kWays> ghosts;  // 0: none
  };
  struct Free {
    void operator()(Bucket* buckets) const { std::free(buckets); }
  };

  Bucket& bucket(uint64_t hash);
  static uint32_t tag(uint64_t hash) {
    const uint32_t bits = static_cast<uint32_t>(hash >> 50);
    return bits == 0 ? 1 : bits;  // so that no ghost is 0
  }
  uint32_t age_ticks(uint32_t tick) const { return (newest_tick_ - tick) & kTickMask; }
  bool is_alive(uint32_t ghost) const { return ghost != 0 && age_ticks(ghost >> 7) <= oldest_age_; }
  void forget(uint32_t& ghost);
  void advance(uint32_t now);
  void set_tick_shift(uint32_t shift);

  // Grows a bucket at a time (linear hashing), over blocks that double what there is: zero pages of the system
  // until they are used. Ghosts that belong into a new bucket by then are lost, and all of them when the tick
  // changes: it grows while objects come and hardly any go.
  std::array<std::unique_ptr<Bucket[], Free>, 32> blocks_;
  uint32_t block_count_ = 0;
  uint32_t bucket_count_ = 0;
  uint32_t ghosts_max_ = 0;
  uint32_t size_ = 0;
  uint32_t tick_shift_ = 0;
  uint32_t newest_tick_ = 0;
  uint32_t oldest_age_ = 0;                        // in ticks; what is older is forgotten
  std::array<uint32_t, kTickMask + 1> by_tick_{};  // ghosts alive
};

}  // namespace kvstore
