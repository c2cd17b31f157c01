// The fields of a MAP reply, as a client reads them.
#include "client/segment_map.hpp"
#include "fuzz.hpp"

namespace kvstore::fuzz {

std::vector<Seed> seeds() {
  std::vector<Seed> seeds{{"no_segment", Bytes(8, 0)}};
  constexpr size_t kHead = wire::kHeaderBytes + wire::kReplyPrefixBytes;
  for (const Golden& golden : golden_frames())
    if (golden.name == "map" && golden.kind == "reply")
      seeds.push_back({golden.name, Bytes(golden.frame.begin() + kHead, golden.frame.end())});
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  try {
    const SegmentMap map = read_segment_map(wire::Reader(data, size), 7);
    HOLDS(map.epoch == 7 && map.segments.size() <= kMapSegmentsMax);
    size_t texts = 0;
    for (size_t i = 0; i < map.segments.size(); ++i) {
      const SegmentRecord& segment = map.segments[i];
      HOLDS(i == 0 || map.segments[i - 1].index < segment.index);
      HOLDS(!segment.writable() || segment.readable());
      texts += segment.host.size() + segment.unix_path.size();
    }
    HOLDS(texts <= size);
  } catch (const wire::WireError& refused) {
    HOLDS(refused.what()[0] != '\0');
  }
  return 0;
}

}  // namespace kvstore::fuzz
