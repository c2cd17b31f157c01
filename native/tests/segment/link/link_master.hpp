// The master's end of a link, for tests: takes frames apart and writes what comes back.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "protocol/link_codec.hpp"
#include "protocol/wire.hpp"

namespace kvstore::testing {

constexpr LinkToken kCluster = {'c', 'l', 'u', 's', 't', 'e', 'r'};
constexpr LinkToken kLinkToken = {'t', 'o', 'k', 'e', 'n'};

struct Frame {
  wire::Header header;
  std::vector<uint8_t> body;

  bool is(wire::Op op) const { return header.op == static_cast<uint8_t>(op); }
  wire::Reader reader() const { return {body.data(), body.size()}; }
};

// Whole frames off the front of `bytes`.
inline std::vector<Frame> take_frames(std::vector<uint8_t>& bytes) {
  std::vector<Frame> frames;
  size_t at = 0;
  while (bytes.size() - at >= wire::kHeaderBytes) {
    const wire::Header header = wire::decode_header(bytes.data() + at);
    if (bytes.size() - at - wire::kHeaderBytes < header.body_bytes) break;
    const auto body = bytes.begin() + static_cast<std::ptrdiff_t>(at + wire::kHeaderBytes);
    frames.push_back({header, {body, body + header.body_bytes}});
    at += wire::kHeaderBytes + header.body_bytes;
  }
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
  return frames;
}

inline std::vector<uint8_t> frame_of(uint8_t op, uint16_t flags, uint32_t request_id,
                                     const std::vector<uint8_t>& body) {
  wire::Header header;
  header.op = op;
  header.flags = flags;
  header.request_id = request_id;
  header.body_bytes = static_cast<uint32_t>(body.size());
  std::vector<uint8_t> out(wire::kHeaderBytes);
  wire::encode_header(header, out.data());
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

inline std::vector<uint8_t> notice(wire::Op op, wire::Writer body) {
  return frame_of(static_cast<uint8_t>(op), 0, 0, body.buffer());
}

inline std::vector<uint8_t> ack(uint64_t durable_seq, uint64_t taken) {
  return notice(wire::Op::kAck, wire::Writer().u64(durable_seq).u64(taken));
}

// The answer that a well-meaning master gives to HELLO, LINK or HEARTBEAT.
inline std::vector<uint8_t> answer(const Frame& request, wire::Status status = wire::Status::kOk,
                                   const std::string& text = "", const LinkToken& cluster = kCluster) {
  wire::Writer body;
  body.reply_prefix(status, text, 7);
  if (request.is(wire::Op::kHello) && status == wire::Status::kOk) {
    body.u8(wire::kVersionMax).zeros(3).u32(wire::kKeysMax).u32(wire::kBodyBytesMax);
    body.u64(wire::kPayloadBytesMax).raw(cluster.data(), cluster.size()).u32(0);
  }
  return frame_of(request.header.op, wire::kFlagReply, request.header.request_id, body.buffer());
}

}  // namespace kvstore::testing
