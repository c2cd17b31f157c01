// Which holder of an object to ask next: the best one that was not asked in this call and that a batch would
// get to.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "client/cluster.hpp"

namespace kvstore {

class ReplicaChoice {
 public:
  // `entry_count`: of the call.
  ReplicaChoice(Cluster& cluster, size_t entry_count) : cluster_(cluster), tried_(entry_count) {}

  // Groups `entries` by the segment to ask now, and counts that as asked. Those that have no holder left to
  // ask come back.
  std::vector<uint32_t> group(const std::vector<uint32_t>& entries, const std::vector<ObjectLocation>& where,
                              SegmentGroups* groups);

 private:
  // The segments an entry was asked at in this call: as looked up, and as looked up again.
  struct Tried {
    std::array<uint32_t, 2 * kReplicasTried> segments{};
    uint8_t count = 0;
    bool has(uint32_t segment) const;
    void add(uint32_t segment);
  };
  // Asked once a segment and round: a batch has many entries and few segments.
  struct Holder {
    std::shared_ptr<SegmentPeer> peer;
    enum class Answers : uint8_t { kNo, kRefusing, kYes } answers = Answers::kNo;
  };
  using Holders = std::map<uint32_t, Holder>;

  uint32_t choose(const ObjectLocation& where, const Tried& tried, Holders* holders);
  const Holder& holder(uint32_t segment, Holders* holders);

  Cluster& cluster_;
  std::vector<Tried> tried_;
};

}  // namespace kvstore
