#include "client/connection/client_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "base/peer_credentials.hpp"

namespace kvstore {
namespace {

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Drops the first `n` bytes of the vector.
void consume(iovec** iov, size_t* count, size_t n) {
  while (n > 0 && *count > 0) {
    if (n < (*iov)->iov_len) {
      (*iov)->iov_base = static_cast<uint8_t*>((*iov)->iov_base) + n;
      (*iov)->iov_len -= n;
      return;
    }
    n -= (*iov)->iov_len;
    ++*iov;
    --*count;
  }
}

void skip_empty(iovec** iov, size_t* count) {
  while (*count > 0 && (*iov)->iov_len == 0) ++*iov, --*count;
}

}  // namespace

NetStatus ClientSocket::wait(short events, const Deadline& deadline) const {
  const Deadline::Wait wait(deadline);
  for (;;) {
    const bool may_sleep = companion_ == nullptr || companion_->advance();
    pollfd p[2] = {{fd_, events, 0}, {companion_ == nullptr ? -1 : companion_->event_fd(), POLLIN, 0}};
    const int ready = ::poll(p, 2, may_sleep ? wait.slice_ms() : 0);
    if (ready < 0 && errno != EINTR) return NetStatus::kClosed;
    if (ready > 0 && p[0].revents != 0)
      return NetStatus::kOk;  // errors and hang-ups show in the call that follows
    if (wait.over()) return NetStatus::kTimeout;
  }
}

NetStatus ClientSocket::connect_unix(const std::string& path, const Deadline& deadline, ClientSocket* out) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return NetStatus::kUnreachable;
  std::memcpy(address.sun_path, path.data(), path.size());
  ClientSocket s(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!s.valid()) return NetStatus::kUnreachable;
  // A full backlog of a unix socket can't be polled for: it says EAGAIN until somebody accepts.
  const Deadline::Wait wait(deadline);
  while (::connect(s.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno != EINTR && !would_block(errno)) return NetStatus::kUnreachable;
    if (wait.over()) return NetStatus::kTimeout;
    ::poll(nullptr, 0, 1);
  }
  // The token comes next.
  if (!is_rightful_listener(s.fd_, path)) return NetStatus::kRefused;
  *out = std::move(s);
  return NetStatus::kOk;
}

NetStatus ClientSocket::send_all(iovec* iov, size_t count, const Deadline& deadline, bool more) {
  for (skip_empty(&iov, &count); count > 0; skip_empty(&iov, &count)) {
    msghdr message{};
    message.msg_iov = iov;
    message.msg_iovlen = count < IOV_MAX ? count : IOV_MAX;
    const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (n >= 0) {
      deadline.moved();
      consume(&iov, &count, static_cast<size_t>(n));
    } else if (would_block(errno)) {
      if (const NetStatus status = wait(POLLOUT, deadline); status != NetStatus::kOk) return status;
    } else if (errno != EINTR) {
      return NetStatus::kClosed;
    }
  }
  return NetStatus::kOk;
}

NetStatus ClientSocket::receive_all(iovec* iov, size_t count, const Deadline& deadline) {
  for (skip_empty(&iov, &count); count > 0; skip_empty(&iov, &count)) {
    msghdr message{};
    message.msg_iov = iov;
    message.msg_iovlen = count < IOV_MAX ? count : IOV_MAX;
    const ssize_t n = ::recvmsg(fd_, &message, 0);
    if (n > 0) {
      deadline.moved();
      consume(&iov, &count, static_cast<size_t>(n));
    } else if (n == 0) {
      return NetStatus::kClosed;
    } else if (would_block(errno)) {
      if (const NetStatus status = wait(POLLIN, deadline); status != NetStatus::kOk) return status;
    } else if (errno != EINTR) {
      return NetStatus::kClosed;
    }
  }
  return NetStatus::kOk;
}

NetStatus ClientSocket::receive_some(void* to, size_t size, const Deadline& deadline, size_t* received) {
  for (;;) {
    const ssize_t n = ::recv(fd_, to, size, 0);
    if (n > 0) {
      deadline.moved();
      *received = static_cast<size_t>(n);
      return NetStatus::kOk;
    }
    if (n == 0) return NetStatus::kClosed;
    if (would_block(errno)) {
      if (const NetStatus status = wait(POLLIN, deadline); status != NetStatus::kOk) return status;
    } else if (errno != EINTR) {
      return NetStatus::kClosed;
    }
  }
}

NetStatus ClientSocket::send_with_descriptor(const void* data, size_t size, int descriptor,
                                             const Deadline& deadline) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  for (;;) {
    iovec iov{const_cast<void*>(data), size};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (n > 0) {
      iovec rest{const_cast<uint8_t*>(static_cast<const uint8_t*>(data)) + n, size - static_cast<size_t>(n)};
      return send_all(&rest, 1, deadline);
    }
    if (n < 0 && would_block(errno)) {
      if (const NetStatus status = wait(POLLOUT, deadline); status != NetStatus::kOk) return status;
    } else if (n == 0 || errno != EINTR) {
      return NetStatus::kClosed;
    }
  }
}

NetStatus ClientSocket::receive_some_with_descriptor(void* to, size_t size, const Deadline& deadline,
                                                     size_t* received, int* descriptor) {
  *descriptor = -1;
  for (;;) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)] = {};
    iovec iov{to, size};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    if (n > 0) {
      deadline.moved();
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
          if (*descriptor < 0)
            *descriptor = fd;
          else
            ::close(fd);  // one was asked for
        }
      }
      *received = static_cast<size_t>(n);
      return NetStatus::kOk;
    }
    if (n == 0) return NetStatus::kClosed;
    if (would_block(errno)) {
      if (const NetStatus status = wait(POLLIN, deadline); status != NetStatus::kOk) return status;
    } else if (errno != EINTR) {
      return NetStatus::kClosed;
    }
  }
}

bool ClientSocket::idle_and_open() const {
  uint8_t byte;
  return ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && would_block(errno);
}

bool ClientSocket::peer_open() const {
  uint8_t byte;
  const ssize_t n = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 || (n < 0 && would_block(errno));
}

void ClientSocket::shutdown() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

void ClientSocket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

}  // namespace kvstore
