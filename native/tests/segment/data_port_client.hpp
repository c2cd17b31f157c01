// A minimal blocking client of the data port for native tests: sends frames, reads replies, passes and takes
// descriptors.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "protocol/wire.hpp"
#include "segment/object_fixture.hpp"
#include "write_key_block.hpp"

namespace kvstore::testing {

struct DataReply {
  wire::Header header;
  wire::Status status = wire::Status::kInternal;
  std::vector<uint8_t> fields;  // after prefix and text
  std::vector<uint8_t> payload;
  int descriptor = -1;  // the caller's

  // The statuses of a "count, reserved, status u8 x n" reply.
  std::vector<uint8_t> statuses() const {
    if (fields.size() < 8) return {};
    wire::Reader reader(fields.data(), fields.size());
    const uint32_t count = reader.u32("count");
    reader.u32("reserved");
    const uint8_t* codes = reader.bytes(count, "statuses");
    return {codes, codes + count};
  }
  // What follows them in the reply to a PUT or PULL.
  uint64_t journal_seq() const {
    wire::Reader reader(fields.data(), fields.size());
    const uint32_t count = reader.u32("count");
    reader.bytes(4 + size_t{count}, "statuses");
    return reader.u64("journal_seq");
  }
};

class DataClient {
 public:
  explicit DataClient(uint16_t tcp_port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(tcp_port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect(reinterpret_cast<sockaddr*>(&to), sizeof(to));
  }
  explicit DataClient(const std::string& unix_path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, unix_path.data(), unix_path.size());
    connect(reinterpret_cast<sockaddr*>(&to), sizeof(to));
  }
  ~DataClient() { ::close(fd_); }
  DataClient(const DataClient&) = delete;
  DataClient& operator=(const DataClient&) = delete;

  void send(const std::vector<uint8_t>& bytes, int pass_fd = -1) {
    for (size_t at = 0; at < bytes.size();) {
      iovec part{const_cast<uint8_t*>(bytes.data()) + at, bytes.size() - at};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))] = {};
      if (pass_fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
      }
      const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
      if (n <= 0) throw std::runtime_error("send: " + std::string(std::strerror(errno)));
      at += static_cast<size_t>(n);
      pass_fd = -1;
    }
  }

  DataReply receive() {
    DataReply reply;
    uint8_t head[wire::kHeaderBytes];
    read(head, sizeof(head), reply.descriptor);
    reply.header = wire::decode_header(head);
    std::vector<uint8_t> body(reply.header.body_bytes);
    read(body.data(), body.size(), reply.descriptor);
    wire::Reader reader(body.data(), body.size());
    reply.status = wire::read_reply_prefix(reader).status;
    const size_t left = reader.left();
    const uint8_t* fields = reader.bytes(left, "fields");
    reply.fields.assign(fields, fields + left);
    reply.payload.resize(reply.header.payload_bytes);
    read(reply.payload.data(), reply.payload.size(), reply.descriptor);
    return reply;
  }

  DataReply call(const std::vector<uint8_t>& frame, int pass_fd = -1) {
    send(frame, pass_fd);
    return receive();
  }

 private:
  void connect(const sockaddr* to, socklen_t size) {
    const timeval patience{20, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (::connect(fd_, to, size) != 0)
      throw std::runtime_error("connect: " + std::string(std::strerror(errno)));
    wire::Writer hello;
    hello.u8(wire::kVersionMin).u8(wire::kVersionMax).u8(1).u8(0).u16(0).u16(0).zeros(16);
    if (call(frame(wire::Op::kHello, hello)).status != wire::Status::kOk)
      throw std::runtime_error("HELLO was refused");
  }

  void read(void* to, size_t size, int& descriptor) {
    auto* out = static_cast<uint8_t*>(to);
    while (size > 0) {
      iovec part{out, size};
      alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))];
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      const ssize_t n = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
      if (n <= 0) throw std::runtime_error("the server closed the connection or is silent");
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c))
        std::memcpy(&descriptor, CMSG_DATA(c), sizeof(int));
      out += n;
      size -= static_cast<size_t>(n);
    }
  }

 public:
  static std::vector<uint8_t> frame(wire::Op op, const wire::Writer& body,
                                    const std::vector<uint8_t>& payload = {}, uint32_t request_id = 1) {
    wire::Header header;
    header.op = static_cast<uint8_t>(op);
    header.request_id = request_id;
    header.body_bytes = static_cast<uint32_t>(body.size());
    header.payload_bytes = payload.size();
    std::vector<uint8_t> out(wire::kHeaderBytes);
    wire::encode_header(header, out.data());
    out.insert(out.end(), body.data(), body.data() + body.size());
    out.insert(out.end(), payload.begin(), payload.end());
    return out;
  }

 private:
  int fd_;
};

// "u32, u32, key block" bodies: PIN, LOCATE.
inline wire::Writer two_numbers_and_keys(uint32_t first, const Keys& keys) {
  wire::Writer body;
  body.u32(first).u32(0);
  write_key_block(body, keys.block());
  return body;
}

inline wire::Writer get_body(const Keys& keys) {
  wire::Writer body = two_numbers_and_keys(0, keys);
  body.zeros(size_t{4} * keys.block().entry_count());
  return body;
}

inline wire::Writer put_body(const Keys& keys, const std::vector<uint32_t>& lengths, uint8_t ack = 0) {
  wire::Writer body;
  body.u8(ack).u8(0).u16(0).u32(1000);
  write_key_block(body, keys.block());
  for (const uint32_t length : lengths) body.u32(length);
  return body;
}

// A PUT of content(name, length) for each name; `damaged` of them are promised another digest.
inline std::vector<uint8_t> put_frame(const std::vector<std::string>& names, uint32_t length,
                                      size_t damaged = 0, uint8_t ack = 0) {
  std::vector<uint8_t> payload;
  wire::Writer digests;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<uint8_t> bytes = content(names[i], length);
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    digests.u32(crc32c(0, bytes.data(), bytes.size()) ^ (i < damaged ? 1 : 0));
  }
  payload.insert(payload.end(), digests.data(), digests.data() + digests.size());
  const Keys keys(names);
  return DataClient::frame(wire::Op::kPut, put_body(keys, std::vector<uint32_t>(names.size(), length), ack),
                           payload);
}

}  // namespace kvstore::testing
