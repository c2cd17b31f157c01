#include "segment/data_port/listener.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace kvstore {
namespace {

constexpr int kBacklog = 1024;
// How often a free port is looked for that is free on every address of the host.
constexpr int kFreePortAttempts = 16;

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::system_error(error, std::generic_category(), what);
}

// Closes the descriptor, then throws with the error that came first.
[[noreturn]] void fail(int fd, const std::string& what) {
  const int error = errno;
  ::close(fd);
  fail(what, error);
}

// In network order.
in_port_t& port_of(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

bool somebody_listens(const sockaddr_un& address) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return true;
  const bool refused = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
                       errno == ECONNREFUSED;
  ::close(fd);
  return !refused;
}

}  // namespace

std::vector<ServerListener> ServerListener::tcp(const std::string& host, uint16_t port) {
  const std::string name =
      (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0)
    fail("listen on " + name + ": " + ::gai_strerror(error), error == EAI_SYSTEM ? errno : EADDRNOTAVAIL);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  for (int attempt = 1;; ++attempt) {
    try {
      return listen_on_all(*found, port, name);
    } catch (const std::system_error& e) {
      // A free port of one address may be taken on the next.
      if (e.code().value() != EADDRINUSE || port != 0 || attempt == kFreePortAttempts) throw;
    }
  }
}

std::vector<ServerListener> ServerListener::listen_on_all(const addrinfo& addresses, uint16_t port,
                                                          const std::string& name) {
  std::vector<ServerListener> listeners;
  std::exception_ptr absent;
  std::vector<std::string> bound;  // a host of several lines in /etc/hosts is found several times
  for (const addrinfo* a = &addresses; a != nullptr; a = a->ai_next) {
    const std::string bytes(reinterpret_cast<const char*>(a->ai_addr), a->ai_addrlen);
    if (std::find(bound.begin(), bound.end(), bytes) != bound.end()) continue;
    bound.push_back(bytes);
    try {
      listeners.push_back(listen_on(*a, listeners.empty() ? port : listeners.front().port(), name));
    } catch (const std::system_error& e) {
      // localhost has an IPv6 address where IPv6 is switched off, too.
      if (e.code().value() != EADDRNOTAVAIL && e.code().value() != EAFNOSUPPORT) throw;
      absent = std::current_exception();
    }
  }
  if (listeners.empty()) std::rethrow_exception(absent);
  return listeners;
}

ServerListener ServerListener::listen_on(const addrinfo& address, uint16_t port, const std::string& name) {
  sockaddr_storage to{};
  std::memcpy(&to, address.ai_addr, std::min<size_t>(address.ai_addrlen, sizeof(to)));
  port_of(to) = htons(port);
  const int fd = ::socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) fail("listen on " + name, errno);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (to.ss_family == AF_INET6) {
    // The wildcard takes IPv4, too, whatever the machine's default is.
    const int v6_only = IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(to).sin6_addr) ? 0 : 1;
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof(v6_only));
  }
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&to), address.ai_addrlen) != 0) fail(fd, "bind " + name);
  if (::listen(fd, kBacklog) != 0) fail(fd, "listen on " + name);
  socklen_t bytes = sizeof(to);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&to), &bytes) != 0) fail(fd, "getsockname of " + name);
  return ServerListener(fd, ntohs(port_of(to)));
}

ServerListener ServerListener::unix_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    fail("unix socket path '" + path + "' must have 1 to " + std::to_string(sizeof(address.sun_path) - 1) +
             " bytes",
         ENAMETOOLONG);
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode) || somebody_listens(address)) fail("bind " + path, EADDRINUSE);
    ::unlink(path.c_str());
  }
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) fail("listen on " + path, errno);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) fail(fd, "bind " + path);
  // Nobody can connect before listen(), so the mode is in force in time.
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(fd, kBacklog) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    errno = error;
    fail(fd, "listen on " + path);
  }
  return ServerListener(fd, path);
}

ServerListener::ServerListener(int fd, std::string path) : fd_(fd), port_(0), path_(std::move(path)) {
  struct stat status{};
  if (::lstat(path_.c_str(), &status) == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
}

ServerListener::ServerListener(ServerListener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      port_(other.port_),
      path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_) {}

ServerListener::~ServerListener() {
  if (fd_ < 0) return;
  ::close(fd_);
  // Another may lie there by now: one that was made anew because this was removed.
  struct stat status{};
  if (!path_.empty() && ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ &&
      status.st_ino == inode_)
    ::unlink(path_.c_str());
}

int ServerListener::accept() const { return ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC); }

}  // namespace kvstore
