// Whether it is wise to do as the demotions of a namespace say. A demoted page is given up at once, so whoever
// demotes what is asked for again and again leaves a store that keeps nothing of use. The judge watches some pages
// of each namespace that demotes, from when they come on, demoted ones and others, whether they are still stored or
// not: where the demoted ones are wanted again more often than the others, demotions of this namespace are not heeded
// until that has changed. Pages that came long ago and are used all the time (the system prompt of everybody) are not
// watched: beside them everything looks as if nobody wanted it.
//
// Time is the number of objects that came or were used. Every call is of bounded work, and so is the memory. Not
// thread-safe: the owner locks.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "protocol/keys.hpp"

namespace kvstore {

class DemotionJudge {
 public:
  // `secret`: nobody who chooses ids knows which of them are watched.
  explicit DemotionJudge(uint64_t secret) : secret_(secret) {}

  bool heeds(const NamespaceId& ns) const;
  // It was asked that an object be demoted.
  void demoted(const NamespaceId& ns, uint64_t id) noexcept;
  // An object has come, or is used. `id`: the same each time; `object_count`: how many there are.
  enum class Touch : uint8_t { kCame, kUsed };
  void touched(const NamespaceId& ns, uint64_t id, Touch touch, uint32_t object_count) noexcept;

  static constexpr uint32_t kNamespacesMax = 1024;  // judged at a time
  static constexpr uint32_t kWatchedMax = 16384;

 private:
  enum Kind : uint8_t { kDemotedPage, kOtherPage };
  // Fading counts of what was watched to its end.
  struct Record {
    double seen[2] = {0, 0};
    double returned[2] = {0, 0};
    bool heeded = true;
  };
  struct Watch {
    uint64_t ns = 0;
    uint64_t since = 0;
    Kind kind = kOtherPage;
  };
  struct Begun {
    uint64_t id = 0;
    uint64_t since = 0;
  };

  static uint64_t as_number(const NamespaceId& ns);
  bool is_watched_kind(uint64_t id) const;
  void end_overdue();
  void conclude(const Watch& watch, bool returned);

  const uint64_t secret_;
  uint64_t now_ = 0;
  uint64_t window_ = 0;  // a page that has not come back for so long has not come back
  uint32_t shift_ = 0;   // one of 2^shift ids is watched
  std::unordered_map<uint64_t, Record> records_;  // by namespace
  std::unordered_map<uint64_t, Watch> watches_;   // by id
  std::deque<Begun> order_;                       // oldest first; may name watches that are over
};

}  // namespace kvstore
