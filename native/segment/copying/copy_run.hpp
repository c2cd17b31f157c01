// One run of a copy: a FETCH, and what comes of it put into the store. One thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <vector>

#include "client/connection/frame_connection.hpp"
#include "segment/budget.hpp"
#include "segment/copying/copy_order.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {

class CopyRun {
 public:
  CopyRun(SegmentStore& store, PutBatch& batch, const CopyOrder& order, const std::atomic<bool>& cancelled);

  // Asks for objects `wanted` (indices into the order's fingerprints) and seals what comes. Sets the status of each in
  // `outcome`; one that did not fit into this run keeps MISS and is named in left(). Anything but kOk: the connection is over.
  NetStatus run(FrameConnection& connection, const std::vector<uint32_t>& wanted, const Deadline& deadline,
                CopyOutcome& outcome);

  const std::vector<uint32_t>& left() const { return left_; }
  uint64_t bytes() const { return bytes_; }
  // The journal number after which what was sealed is durable.
  uint64_t seq() const { return seq_; }

 private:
  // Objects of one pool, shard and wish: what one put request can hold.
  struct Group {
    ~Group();
    SegmentStore* store = nullptr;
    Shard shard{};
    std::vector<uint8_t> hashes, depths, lengths;
    std::vector<uint32_t> objects;  // of the run, by entry
    PutRequest put;
    std::vector<WriteEntry> writes;
  };
  Group& group_of(const fetch_codec::FetchedObject& object);
  void sort(const std::vector<fetch_codec::FetchedObject>& objects);
  void reserve(Group& group, const Deadline& deadline);
  NetStatus receive(FrameConnection& connection, const std::vector<fetch_codec::FetchedObject>& objects,
                    const Deadline& deadline);
  void seal(Group& group, const std::vector<uint32_t>& wanted, CopyOutcome& outcome);

  SegmentStore& store_;
  PutBatch& batch_;
  const CopyOrder& order_;
  const std::atomic<bool>& cancelled_;
  BudgetShare share_;
  std::list<Group> groups_;
  std::vector<WriteEntry*> write_of_;  // by object of the run; null: it has no bytes
  std::vector<uint32_t> left_;
  uint64_t bytes_ = 0;
  uint64_t seq_ = 0;
};

}  // namespace kvstore
