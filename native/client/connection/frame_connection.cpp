#include "client/connection/frame_connection.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace kvstore {
namespace {

// Later minor revisions may append fields to a reply, and refusals carry a text: room for both.
constexpr size_t kBodySlackBytes = 64u << 10;
constexpr size_t kReadAheadBytesMax = 128u << 10;

}  // namespace

void FrameConnection::fill_header(wire::Op op, size_t body_bytes, uint64_t payload_bytes,
                                  uint32_t* request_id, uint8_t out[wire::kHeaderBytes]) {
  *request_id = next_request_id_++;
  wire::Header header;
  header.op = static_cast<uint8_t>(op);
  header.request_id = *request_id;
  header.body_bytes = static_cast<uint32_t>(body_bytes);
  header.payload_bytes = payload_bytes;
  wire::encode_header(header, out);
}

NetStatus FrameConnection::send_request(wire::Op op, const uint8_t* body, size_t body_bytes,
                                        uint64_t payload_bytes, const Deadline& deadline,
                                        uint32_t* request_id) {
  if (body_bytes > wire::kBodyBytesMax || payload_bytes > wire::kPayloadBytesMax) return NetStatus::kProtocol;
  uint8_t header[wire::kHeaderBytes];
  fill_header(op, body_bytes, payload_bytes, request_id, header);
  iovec iov[2] = {{header, sizeof(header)}, {const_cast<uint8_t*>(body), body_bytes}};
  return socket_.send_all(iov, 2, deadline, payload_bytes > 0);
}

NetStatus FrameConnection::send_request_with_descriptor(wire::Op op, const uint8_t* body, size_t body_bytes,
                                                        int descriptor, const Deadline& deadline,
                                                        uint32_t* request_id) {
  std::vector<uint8_t> frame(wire::kHeaderBytes + body_bytes);
  fill_header(op, body_bytes, 0, request_id, frame.data());
  if (body_bytes > 0) std::memcpy(frame.data() + wire::kHeaderBytes, body, body_bytes);
  return socket_.send_with_descriptor(frame.data(), frame.size(), descriptor, deadline);
}

NetStatus FrameConnection::buffer_at_least(size_t wanted, size_t read_ahead, const Deadline& deadline,
                                           int* descriptor) {
  if (buffered() >= wanted) return NetStatus::kOk;
  if (taken_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + taken_, buffered());
    filled_ -= taken_;
    taken_ = 0;
  }
  const size_t limit = std::max(wanted, read_ahead);
  if (buffer_.size() < limit) buffer_.resize(limit);
  while (filled_ < wanted) {
    size_t received = 0;
    NetStatus status;
    if (descriptor == nullptr) {
      status = socket_.receive_some(buffer_.data() + filled_, limit - filled_, deadline, &received);
    } else {
      int fd = -1;
      status = socket_.receive_some_with_descriptor(buffer_.data() + filled_, limit - filled_, deadline,
                                                    &received, &fd);
      if (fd >= 0) {
        if (*descriptor >= 0) ::close(*descriptor);
        *descriptor = fd;
      }
    }
    if (status != NetStatus::kOk) return status;
    filled_ += received;
  }
  return NetStatus::kOk;
}

NetStatus FrameConnection::receive_reply(wire::Op op, uint32_t request_id, size_t fields_hint_bytes,
                                         const Deadline& deadline, FrameReply* reply) {
  return receive_reply_with_descriptor(op, request_id, fields_hint_bytes, deadline, reply, nullptr);
}

NetStatus FrameConnection::receive_reply_with_descriptor(wire::Op op, uint32_t request_id,
                                                         size_t fields_hint_bytes, const Deadline& deadline,
                                                         FrameReply* reply, int* descriptor) {
  if (descriptor != nullptr) *descriptor = -1;
  // Reading ahead exactly as far as an OK reply goes takes header and body in one system call, and leaves the payload in the
  // socket, from where it goes straight into the caller's memory.
  const size_t read_ahead =
      std::min(wire::kHeaderBytes + wire::kReplyPrefixBytes + fields_hint_bytes, kReadAheadBytesMax);
  NetStatus status = buffer_at_least(wire::kHeaderBytes, read_ahead, deadline, descriptor);
  try {
    if (status == NetStatus::kOk) {
      const wire::Header header = wire::decode_header(buffer_.data() + taken_);
      if (!header.is_reply() || header.op != static_cast<uint8_t>(op) || header.request_id != request_id ||
          header.version != wire::kFrameVersion ||
          header.body_bytes > 2 * fields_hint_bytes + kBodySlackBytes ||
          (header.payload_bytes > 0 && op != wire::Op::kGet && op != wire::Op::kFetch))
        status = NetStatus::kProtocol;
      if (status == NetStatus::kOk)
        status = buffer_at_least(wire::kHeaderBytes + header.body_bytes, read_ahead, deadline, descriptor);
      if (status == NetStatus::kOk) {
        wire::Reader reader(buffer_.data() + taken_ + wire::kHeaderBytes, header.body_bytes);
        const wire::ReplyPrefix prefix = wire::read_reply_prefix(reader);
        reply->status = prefix.status;
        reply->text = prefix.text;
        reply->map_epoch = prefix.map_epoch;
        reply->payload_bytes = header.payload_bytes;
        reply->fields_bytes = reader.left();
        reply->fields = reader.bytes(reply->fields_bytes, "fields");
        taken_ += wire::kHeaderBytes + header.body_bytes;
      }
    }
  } catch (const wire::WireError&) {
    status = NetStatus::kProtocol;
  }
  if (status != NetStatus::kOk && descriptor != nullptr && *descriptor >= 0) {
    ::close(*descriptor);
    *descriptor = -1;
  }
  return status;
}

NetStatus FrameConnection::receive_payload(iovec* iov, size_t count, const Deadline& deadline) {
  while (count > 0 && buffered() > 0) {
    const size_t n = std::min(buffered(), iov->iov_len);
    if (n > 0) std::memcpy(iov->iov_base, buffer_.data() + taken_, n);
    taken_ += n;
    iov->iov_base = static_cast<uint8_t*>(iov->iov_base) + n;
    iov->iov_len -= n;
    if (iov->iov_len == 0) ++iov, --count;
  }
  return socket_.receive_all(iov, count, deadline);
}

NetStatus FrameConnection::hello(const HelloOptions& options, const PeerId& expected,
                                 const Deadline& deadline) {
  wire::Writer body(64 + options.token.size() + options.name.size());
  body.u8(wire::kVersionMin).u8(wire::kVersionMax).u8(static_cast<uint8_t>(wire::Role::kClient)).u8(0);
  body.u16(static_cast<uint16_t>(options.token.size())).u16(static_cast<uint16_t>(options.name.size()));
  body.raw(expected.data(), expected.size());
  body.raw(options.token.data(), options.token.size()).raw(options.name.data(), options.name.size());
  uint32_t id = 0;
  NetStatus status = send_request(wire::Op::kHello, body.data(), body.size(), 0, deadline, &id);
  if (status != NetStatus::kOk) return status;
  FrameReply reply;
  status = receive_reply(wire::Op::kHello, id, 40, deadline, &reply);
  if (status != NetStatus::kOk) return status;
  if (reply.status != wire::Status::kOk) {
    refusal_ = reply.status;
    refusal_text_ = reply.text;
    return NetStatus::kRefused;
  }
  try {
    wire::Reader reader = reply.reader();
    const uint8_t version = reader.u8("version");
    reader.bytes(3, "reserved");
    reader.u32("max_keys");
    reader.u32("max_body_bytes");
    reader.u64("max_payload_bytes");
    PeerId peer;
    std::memcpy(peer.data(), reader.bytes(peer.size(), "peer_id"), peer.size());
    features_ = reader.u32("features");
    if (version < wire::kVersionMin || version > wire::kVersionMax) return NetStatus::kProtocol;
    // The peer should have refused; one that does not know the field may not have.
    if (expected != kAnyPeer && peer != expected) {
      refusal_ = wire::Status::kWrongPeer;
      return NetStatus::kRefused;
    }
  } catch (const wire::WireError&) {
    return NetStatus::kProtocol;
  }
  return NetStatus::kOk;
}

}  // namespace kvstore
