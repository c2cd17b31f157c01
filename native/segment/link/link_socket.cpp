#include "segment/link/link_socket.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/host_resolver.hpp"
#include "segment/link/conversation.hpp"

namespace kvstore {
namespace {

// How long a name is waited for before it is looked whether to stop.
constexpr int kResolveSliceMs = 50;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

bool is_readable(int fd) {
  pollfd item{fd, POLLIN, 0};
  return ::poll(&item, 1, 0) > 0;
}

[[noreturn]] void stopped() { throw LinkEnded("stopped", "the link was told to end"); }

std::vector<SocketAddress> resolve(const std::string& host, uint16_t port, int stop_fd,
                                   LinkSocket::Clock::time_point deadline) {
  for (;;) {
    auto found = HostResolver::process().resolve(host, port, Deadline::after_ms(kResolveSliceMs));
    if (!found.empty()) return found;
    if (is_readable(stop_fd)) stopped();
    if (LinkSocket::Clock::now() >= deadline)
      throw LinkEnded("unreachable", "the name of the master's host, " + host + ", has no address");
    // A name that is known not to be there is answered at once.
    pollfd item{stop_fd, POLLIN, 0};
    ::poll(&item, 1, kResolveSliceMs);
  }
}

// 0, or the error that it ended with.
int connect_to(int fd, const SocketAddress& address, int stop_fd, LinkSocket::Clock::time_point deadline) {
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  for (;;) {
    pollfd items[2] = {{fd, POLLOUT, 0}, {stop_fd, POLLIN, 0}};
    if (::poll(items, 2, poll_ms(deadline)) < 0 && errno != EINTR) return errno;
    if (items[1].revents != 0) stopped();
    if (items[0].revents != 0) break;
    if (LinkSocket::Clock::now() >= deadline) return ETIMEDOUT;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

}  // namespace

int poll_ms(LinkSocket::Clock::time_point until) {
  if (until == LinkSocket::Clock::time_point::max()) return -1;
  const auto left =
      std::chrono::duration_cast<std::chrono::microseconds>(until - LinkSocket::Clock::now()).count();
  return left <= 0 ? 0 : static_cast<int>(std::min<long long>((left + 999) / 1000, 1 << 30));
}

LinkSocket::LinkSocket(const std::string& host, uint16_t port, int stop_fd, Clock::time_point deadline) {
  const auto addresses = resolve(host, port, stop_fd, deadline);
  int error = 0;
  for (size_t i = 0; i < addresses.size(); ++i) {
    // The rest of the time is shared among the addresses that are left.
    const auto now = Clock::now();
    const auto share = (deadline - now) / static_cast<int>(addresses.size() - i);
    const int fd = ::socket(addresses[i].family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    try {
      error = connect_to(fd, addresses[i], stop_fd, now + std::max(share, Clock::duration::zero()));
    } catch (...) {
      ::close(fd);
      throw;
    }
    if (error == 0) {
      fd_ = fd;
      return;
    }
    ::close(fd);
  }
  throw LinkEnded("unreachable", "the master's directory port " + host + ":" + std::to_string(port) +
                                     " can't be reached (" + std::strerror(error) +
                                     "): is it open to segments, and advertised as it is reached?");
}

LinkSocket::~LinkSocket() {
  if (fd_ < 0) return;
  ::shutdown(fd_, SHUT_RDWR);  // a forked child may hold a copy of the descriptor
  ::close(fd_);
}

size_t LinkSocket::send_some(const uint8_t* data, size_t size) {
  for (;;) {
    const ssize_t n = ::send(fd_, data, size, MSG_NOSIGNAL);
    if (n >= 0) return static_cast<size_t>(n);
    if (would_block(errno)) return 0;
    if (errno != EINTR) throw LinkEnded("lost", std::string("the link broke: ") + std::strerror(errno));
  }
}

size_t LinkSocket::receive_some(uint8_t* to, size_t size) {
  for (;;) {
    const ssize_t n = ::recv(fd_, to, size, 0);
    if (n > 0) return static_cast<size_t>(n);
    if (n == 0) throw LinkEnded("lost", "the master closed the link");
    if (would_block(errno)) return 0;
    if (errno != EINTR) throw LinkEnded("lost", std::string("the link broke: ") + std::strerror(errno));
  }
}

}  // namespace kvstore
