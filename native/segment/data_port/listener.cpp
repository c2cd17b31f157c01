#include "segment/data_port/listener.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace kvstore {
namespace {

constexpr int kBacklog = 1024;

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::system_error(error, std::generic_category(), what);
}

// Closes the descriptor, then throws with the error that came first.
[[noreturn]] void fail(int fd, const std::string& what) {
  const int error = errno;
  ::close(fd);
  fail(what, error);
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

ServerListener ServerListener::tcp(const std::string& host, uint16_t port) {
  const std::string address = host + ":" + std::to_string(port);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    fail("listen on " + address + ": " + ::gai_strerror(error), error == EAI_SYSTEM ? errno : EADDRNOTAVAIL);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) fail("listen on " + address, errno);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd, found->ai_addr, found->ai_addrlen) != 0) fail(fd, "bind " + address);
  if (::listen(fd, kBacklog) != 0) fail(fd, "listen on " + address);
  sockaddr_storage bound{};
  socklen_t bound_bytes = sizeof(bound);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bound_bytes) != 0)
    fail(fd, "getsockname of " + address);
  const uint16_t bound_port = bound.ss_family == AF_INET6
                                  ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                  : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  return ServerListener(fd, ntohs(bound_port));
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

bool ServerListener::is_trusted_peer(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace kvstore
