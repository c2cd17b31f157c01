// One framed connection (docs/protocol.md sections 1 and 4): HELLO, requests out, replies in.
//
// One thread at a time. Any status but kOk leaves the stream at an unknown place: the connection must then be thrown away.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "client/connection/client_socket.hpp"
#include "protocol/net_status.hpp"
#include "protocol/reply.hpp"
#include "protocol/wire.hpp"

namespace kvstore {

struct HelloOptions {
  std::string token;
  std::string name;
};

class FrameConnection {
 public:
  // Takes a connected socket; hello() must follow.
  explicit FrameConnection(ClientSocket socket) : socket_(std::move(socket)) {}

  // kRefused: the peer answered with a refusal, kept in refusal(). An `expected` of zeros accepts any peer.
  NetStatus hello(const HelloOptions& options, const PeerId& expected, const Deadline& deadline);
  wire::Status refusal() const { return refusal_; }
  // What the peer said with it.
  const std::string& refusal_text() const { return refusal_text_; }
  uint32_t features() const { return features_; }

  // Sends header and body. With payload_bytes > 0 the caller sends exactly that many bytes by send_bytes next.
  NetStatus send_request(wire::Op op, const uint8_t* body, size_t body_bytes, uint64_t payload_bytes,
                         const Deadline& deadline, uint32_t* request_id);
  // A request on which a descriptor rides (unix sockets).
  NetStatus send_request_with_descriptor(wire::Op op, const uint8_t* body, size_t body_bytes, int descriptor,
                                         const Deadline& deadline, uint32_t* request_id);
  NetStatus send_bytes(iovec* iov, size_t count, const Deadline& deadline, bool more) {
    return socket_.send_all(iov, count, deadline, more);
  }

  // The reply to `request_id`; anything else in its place is kProtocol. `fields_hint_bytes`: size of the fields expected of
  // an OK reply. A body much larger than that is refused before it is allocated. Only GET and FETCH replies may carry a payload,
  // which the caller must then receive in whole.
  NetStatus receive_reply(wire::Op op, uint32_t request_id, size_t fields_hint_bytes,
                          const Deadline& deadline, FrameReply* reply);
  // As receive_reply, with a descriptor on the reply (-1 when it carries none). The caller owns it.
  NetStatus receive_reply_with_descriptor(wire::Op op, uint32_t request_id, size_t fields_hint_bytes,
                                          const Deadline& deadline, FrameReply* reply, int* descriptor);
  // Fills `iov` from the payload of the last reply; consumes `iov`.
  NetStatus receive_payload(iovec* iov, size_t count, const Deadline& deadline);

  bool idle_and_open() const { return buffered() == 0 && socket_.idle_and_open(); }
  bool peer_open() const { return socket_.peer_open(); }
  void shutdown() const { socket_.shutdown(); }
  int fd() const { return socket_.fd(); }

  // What a transport keeps with the connection: kept going while this side waits, and gone with it.
  void set_companion(std::shared_ptr<SocketCompanion> companion) {
    socket_.set_companion(companion.get());
    companion_ = std::move(companion);
  }
  SocketCompanion* companion() const { return companion_.get(); }

  // Buffers registered with the peer on this connection: (registration of ours, buffer_id of the peer).
  struct Registration {
    uint64_t registration;
    uint32_t buffer_id;
    bool refused = false;  // the peer wants no more of them: it is not asked again on this connection
  };
  std::vector<Registration>& registrations() { return registrations_; }
  const std::vector<Registration>& registrations() const { return registrations_; }

 private:
  size_t buffered() const { return filled_ - taken_; }
  void fill_header(wire::Op op, size_t body_bytes, uint64_t payload_bytes, uint32_t* request_id,
                   uint8_t out[wire::kHeaderBytes]);
  NetStatus buffer_at_least(size_t wanted, size_t read_ahead, const Deadline& deadline, int* descriptor);

  std::shared_ptr<SocketCompanion> companion_;
  ClientSocket socket_;
  uint32_t next_request_id_ = 1;
  uint32_t features_ = 0;
  wire::Status refusal_ = wire::Status::kOk;
  std::string refusal_text_;
  std::vector<uint8_t> buffer_;  // bytes received: [taken_, filled_) are not consumed yet
  size_t taken_ = 0;
  size_t filled_ = 0;
  std::vector<Registration> registrations_;
};

}  // namespace kvstore
