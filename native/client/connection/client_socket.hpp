// A non-blocking stream socket (TCP or unix) whose every wait is bounded by a deadline.
//
// One thread at a time; shutdown() alone may be called from any thread. Nothing is written into a caller's memory except
// by a receive call that has not returned yet.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "base/socket_companion.hpp"
#include "protocol/net_status.hpp"

namespace kvstore {

class ClientSocket {
 public:
  ClientSocket() = default;
  explicit ClientSocket(int fd) : fd_(fd) {}  // takes ownership; the descriptor must be non-blocking
  ~ClientSocket() { close(); }
  ClientSocket(ClientSocket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), companion_(std::exchange(other.companion_, nullptr)) {}
  ClientSocket& operator=(ClientSocket&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
      companion_ = std::exchange(other.companion_, nullptr);
    }
    return *this;
  }
  ClientSocket(const ClientSocket&) = delete;
  ClientSocket& operator=(const ClientSocket&) = delete;

  static NetStatus connect_unix(const std::string& path, const Deadline& deadline, ClientSocket* out);

  // Sends everything; consumes `iov`. `more`: further bytes of the same message follow at once.
  NetStatus send_all(iovec* iov, size_t count, const Deadline& deadline, bool more = false);
  // Fills everything; consumes `iov`.
  NetStatus receive_all(iovec* iov, size_t count, const Deadline& deadline);
  // At least one byte, at most `size`.
  NetStatus receive_some(void* to, size_t size, const Deadline& deadline, size_t* received);

  // Sends `size` bytes with a descriptor riding on the first of them (unix sockets).
  NetStatus send_with_descriptor(const void* data, size_t size, int descriptor, const Deadline& deadline);
  // As receive_some; a descriptor that rides on the bytes is stored in *descriptor (the caller owns it), -1 without one.
  NetStatus receive_some_with_descriptor(void* to, size_t size, const Deadline& deadline, size_t* received,
                                         int* descriptor);

  // Open, and nothing unread: what an idle connection must look like. A peer that closed, or that talks unasked, fails this.
  bool idle_and_open() const;
  // Open, whatever is unread.
  bool peer_open() const;

  // Kept going by every wait from now on; null: none. Outlives the waits.
  void set_companion(SocketCompanion* companion) { companion_ = companion; }

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  // Ends the connection for both sides, also where a forked child still holds a copy of the descriptor.
  void shutdown() const;
  void close();

 private:
  NetStatus wait(short events, const Deadline& deadline) const;
  int fd_ = -1;
  SocketCompanion* companion_ = nullptr;
};

}  // namespace kvstore
