#include "client/connection/tcp_connect.hpp"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace kvstore {
namespace {

using Clock = Deadline::Clock;

// What an address gets before the next is tried beside it: an equal share of the time, within these bounds.
constexpr std::chrono::milliseconds kHeadStartMin{10};
constexpr std::chrono::milliseconds kHeadStartMax{250};

struct Attempt {
  ClientSocket socket;
  size_t index;
};

// Begins to connect. False when that failed at once.
bool begin(const SocketAddress& address, ClientSocket* out) {
  ClientSocket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return false;
  const int one = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 &&
      errno != EINPROGRESS && errno != EINTR)
    return false;
  *out = std::move(socket);
  return true;
}

bool succeeded(const ClientSocket& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

int ms_until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end - Clock::now()).count();
  return left <= 0 ? 0 : static_cast<int>((left + 999) / 1000);
}

}  // namespace

NetStatus connect_any(const std::vector<SocketAddress>& addresses, const Deadline& call_deadline,
                      ClientSocket* out, size_t* winner) {
  // A probe of a doubtful peer has less time than its call.
  const Deadline deadline = call_deadline.of_one_wait();
  const Deadline::Wait waiting(deadline);
  const std::chrono::milliseconds share(deadline.left_ms() / std::max<int64_t>(addresses.size(), 1));
  const auto head_start = std::clamp(share, kHeadStartMin, kHeadStartMax);
  std::vector<Attempt> attempts;
  std::vector<pollfd> items;
  Clock::time_point next_at = Clock::now();
  for (size_t next = 0; next < addresses.size() || !attempts.empty();) {
    if (waiting.over()) return NetStatus::kTimeout;
    if (next < addresses.size() && (attempts.empty() || Clock::now() >= next_at)) {
      Attempt attempt{ClientSocket(), next};
      if (begin(addresses[next++], &attempt.socket)) {
        attempts.push_back(std::move(attempt));
        next_at = Clock::now() + head_start;
      }
      continue;
    }
    items.clear();
    for (const Attempt& attempt : attempts) items.push_back({attempt.socket.fd(), POLLOUT, 0});
    const auto until = next < addresses.size() ? std::min(next_at, waiting.slice_end()) : waiting.slice_end();
    if (::poll(items.data(), items.size(), ms_until(until)) < 0 && errno != EINTR) return NetStatus::kClosed;
    for (size_t i = items.size(); i-- > 0;) {
      if (items[i].revents == 0) continue;
      if (succeeded(attempts[i].socket)) {
        *out = std::move(attempts[i].socket);
        *winner = attempts[i].index;
        return NetStatus::kOk;
      }
      attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
      next_at = Clock::now();
    }
  }
  return NetStatus::kUnreachable;
}

NetStatus connect_tcp(const std::string& host, uint16_t port, const Deadline& deadline, ClientSocket* out) {
  HostResolver& names = HostResolver::process();
  const std::vector<SocketAddress> addresses = names.resolve(host, port, deadline);
  if (addresses.empty()) return NetStatus::kUnresolved;
  size_t winner = 0;
  const NetStatus status = connect_any(addresses, deadline, out, &winner);
  if (status != NetStatus::kOk)
    names.unreachable(host);
  else if (winner != 0)
    names.connected(host, addresses[winner]);
  return status;
}

}  // namespace kvstore
