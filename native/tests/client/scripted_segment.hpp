// A segment that answers as a test tells it to.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "base/digest.hpp"
#include "client/page_client_fixture.hpp"

namespace kvstore::testing {

// Has the directory say that a segment holds the batch's objects.
inline void announce(Fixture& f, Batch& b, uint32_t segment) {
  b.keys.ns = f.client.namespace_state(f.handle).ns;
  const auto fps = b.keys.fingerprints();
  wire::Writer group;
  group.u8(1).zeros(3).u32(static_cast<uint32_t>(fps.size())).raw(b.keys.ns.data(), 8);
  group.raw(fps.data(), fps.size() * kFingerprintBytes);
  for (size_t i = 0; i < fps.size(); ++i) group.u32(static_cast<uint32_t>(b.pieces->entry_bytes(i)));
  f.directory.index().apply(segment, group.data(), group.size());
}

class ScriptedSegment {
 public:
  using Script = std::function<void(int fd, const Request&)>;

  // Knows nothing.
  ScriptedSegment(TestDirectory& directory, uint32_t index, Script script, uint32_t features = 0)
      : script_(std::move(script)), features_(features), server_([this](int fd) { serve(fd); }) {
    SegmentRecord record;
    record.index = index;
    record.state = wire::SegmentState::kLive;
    record.pool_id = pool_id();
    record.capacity_bytes = 64u << 20;
    record.host = "127.0.0.1";
    record.tcp_port = server_.port();
    directory.set_segment(record);
  }
  // Segment 0, which is said to have the batch's objects.
  ScriptedSegment(Fixture& f, Batch& b, Script script) : ScriptedSegment(f.directory, 0, std::move(script)) {
    announce(f, b, 0);
  }
  int requests(wire::Op op) const { return requests_[static_cast<size_t>(op)]; }

 private:
  static PeerId pool_id() {
    PeerId id;
    id.fill(9);
    return id;
  }
  void serve(int fd) {
    if (!answer_hello(fd, pool_id(), features_)) return;
    Request request;
    while (read_request(fd, &request)) {
      ++requests_[request.header.op];
      script_(fd, request);
    }
  }

  const Script script_;
  const uint32_t features_;
  std::atomic<int> requests_[256]{};
  FrameServer server_;
};

// Reads what follows a PUT's body.
inline void skip_payload(int fd, const Request& request) {
  std::vector<uint8_t> sink(request.header.payload_bytes);
  read_all(fd, sink.data(), sink.size());
}

// Answers a PUT with the same status for each of its entries.
inline void answer_put(int fd, const Request& request, wire::Status status) {
  wire::Reader body = request.reader();
  body.bytes(8, "put head");
  const uint32_t count = read_key_block(body).entry_count();
  wire::Writer fields;
  fields.u32(count).u32(0);
  for (uint32_t i = 0; i < count; ++i) fields.u8(static_cast<uint8_t>(status));
  send_reply(fd, request, wire::Status::kOk, fields);
}

inline std::vector<uint8_t> ok_get_reply(const Request& request, const std::vector<uint8_t>& bytes,
                                         uint32_t digest) {
  wire::Writer fields;
  fields.u32(1)
      .u32(0)
      .u8(0)
      .u8(kDigestCrc32c)
      .u16(0)
      .u32(static_cast<uint32_t>(bytes.size()))
      .u32(digest)
      .u32(0);
  std::vector<uint8_t> frame = reply_frame(request, wire::Status::kOk, fields, bytes.size());
  frame.insert(frame.end(), bytes.begin(), bytes.end());
  return frame;
}

}  // namespace kvstore::testing
