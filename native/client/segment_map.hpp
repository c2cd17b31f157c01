// The cluster's segments as a master's MAP reply lists them. A value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/reply.hpp"
#include "protocol/wire.hpp"

namespace kvstore {

struct SegmentRecord {
  uint32_t index = 0;
  wire::SegmentState state = wire::SegmentState::kGone;
  PeerId segment_id{};
  PeerId pool_id{};
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  std::string host;
  uint16_t tcp_port = 0;
  std::string unix_path;

  bool readable() const {
    return state == wire::SegmentState::kLive || state == wire::SegmentState::kDraining;
  }
  bool writable() const { return state == wire::SegmentState::kLive; }
  // Whether what is connected to `o` is connected to this.
  bool same_peer(const SegmentRecord& o) const {
    return pool_id == o.pool_id && host == o.host && tcp_port == o.tcp_port && unix_path == o.unix_path;
  }
};

struct SegmentMap {
  uint64_t epoch = 0;
  std::vector<SegmentRecord> segments;  // ascending by index
};

// Parses the fields of a MAP reply. Throws wire::WireError when malformed.
SegmentMap read_segment_map(wire::Reader reader, uint64_t epoch);

// Of one map.
constexpr uint32_t kMapSegmentsMax = 16384;

}  // namespace kvstore
