// The TCP connection of a link: connecting, sending and receiving without ever blocking for longer than a wait that a
// descriptor ends. One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvstore {

class LinkSocket {
 public:
  using Clock = std::chrono::steady_clock;

  // Connects to one address of the host after the other. Throws LinkEnded: at the deadline, when nothing can be reached, or when
  // `stop_fd` is readable.
  LinkSocket(const std::string& host, uint16_t port, int stop_fd, Clock::time_point deadline);
  ~LinkSocket();
  LinkSocket(const LinkSocket&) = delete;
  LinkSocket& operator=(const LinkSocket&) = delete;

  int fd() const { return fd_; }
  // How much was sent, or came; 0 when nothing can be at the moment. Throw LinkEnded when the connection is over.
  size_t send_some(const uint8_t* data, size_t size);
  size_t receive_some(uint8_t* to, size_t size);

 private:
  int fd_ = -1;
};

// Milliseconds until then for poll(), rounded up; never negative.
int poll_ms(LinkSocket::Clock::time_point until);

}  // namespace kvstore
