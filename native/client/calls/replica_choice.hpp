// Which holder of an object to ask next: the best one that was not asked in this call and that a batch would
// get to; and how long that one may be silent while another could be asked.
//
//   on this host                       -> first
//   failed, or silent just now         -> last
//   gets take twice as long there      -> last of two that are otherwise equal
//   not the last holder to ask         -> may be silent for a quarter of the time left, 100 ms at most; 20 ms where it failed
//                                         last time: the next one is asked in what is left
//   the last one                       -> to the deadline
//   nobody left but some were silent   -> those once more, to the deadline
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

  // Adds to `parts`, made of `prototype`, one for each segment to ask now, or two where some of its entries have no other holder;
  // counts them as asked. The entries that have no holder left to ask come back.
  std::vector<uint32_t> parts(const std::vector<uint32_t>& entries, const std::vector<ObjectLocation>& where,
                              const TransportBatch& prototype, const Deadline& deadline,
                              std::vector<Cluster::Part>* parts);
  // What has become of them.
  void asked(const std::vector<Cluster::Part>& parts);

 private:
  // The segments an entry was asked at in this call: as looked up, and as looked up again.
  struct Tried {
    std::array<uint32_t, 2 * kReplicasTried> segments{};
    uint8_t count = 0;
    std::array<uint32_t, kReplicasTried> silent{wire::kNoSegment, wire::kNoSegment};  // to be asked once more
    bool has(uint32_t segment) const;
    void add(uint32_t segment);
  };
  // Asked once a segment and round: a batch has many entries and few segments.
  struct Holder {
    std::shared_ptr<SegmentPeer> peer;
    enum class Answers : uint8_t { kNo, kRefusing, kYes } answers = Answers::kNo;
    bool near = false;
    bool spared = false;
    bool troubled = false;
    uint64_t us_per_mib = 0;
    bool better_than(const Holder& other) const;
  };
  using Holders = std::map<uint32_t, Holder>;

  struct Choice {
    uint32_t segment = wire::kNoSegment;
    bool is_last = true;  // nobody else can be asked after it
  };
  Choice choose(const ObjectLocation& where, const Tried& tried, Holders* holders);
  Choice choose_silent(Tried* tried, Holders* holders);
  const Holder& holder(uint32_t segment, Holders* holders);

  Cluster& cluster_;
  std::vector<Tried> tried_;
};

}  // namespace kvstore
