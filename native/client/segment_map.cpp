#include "client/segment_map.hpp"

#include <algorithm>
#include <cstring>

namespace kvstore {

SegmentMap read_segment_map(wire::Reader reader, uint64_t epoch) {
  SegmentMap map;
  map.epoch = epoch;
  const uint32_t count = reader.u32("count");
  reader.u32("reserved");
  if (count > kMapSegmentsMax)
    throw wire::WireError(wire::Status::kTooLarge, std::to_string(count) + " segments are over the cap of " +
                                                       std::to_string(kMapSegmentsMax));
  for (uint32_t i = 0; i < count; ++i) {
    SegmentRecord s;
    s.index = reader.u32("index");
    s.state = static_cast<wire::SegmentState>(reader.u8("state"));
    reader.bytes(3, "reserved");
    std::memcpy(s.segment_id.data(), reader.bytes(16, "segment_id"), 16);
    std::memcpy(s.pool_id.data(), reader.bytes(16, "pool_id"), 16);
    s.capacity_bytes = reader.u64("capacity_bytes");
    s.used_bytes = reader.u64("used_bytes");
    const uint16_t host_bytes = reader.u16("host_bytes");
    s.tcp_port = reader.u16("tcp_port");
    const uint16_t unix_bytes = reader.u16("unix_bytes");
    reader.u16("reserved");
    s.host = std::string(reader.text(host_bytes, "host"));
    s.unix_path = std::string(reader.text(unix_bytes, "unix_path"));
    map.segments.push_back(std::move(s));
  }
  std::sort(map.segments.begin(), map.segments.end(),
            [](const SegmentRecord& a, const SegmentRecord& b) { return a.index < b.index; });
  for (size_t i = 1; i < map.segments.size(); ++i)
    if (map.segments[i - 1].index == map.segments[i].index)
      throw wire::WireError(wire::Status::kBadRequest, "two segments of one index");
  return map;
}

}  // namespace kvstore
