// A listening socket, TCP or unix, non-blocking. Immutable after construction.
#pragma once

#include <netdb.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvstore {

class ServerListener {
 public:
  // Both throw std::system_error naming the address. `host` is a name or an address of this machine: one listener for each
  // address of a name, all on one port (0: a free one). "::" takes IPv4, too.
  static std::vector<ServerListener> tcp(const std::string& host, uint16_t port);
  // A stale socket file (one that nobody listens on) is replaced; mode 0600.
  static ServerListener unix_socket(const std::string& path);
  ServerListener(ServerListener&& other) noexcept;
  ~ServerListener();  // closes, and removes the socket file, if it is still its own
  ServerListener(const ServerListener&) = delete;
  ServerListener& operator=(const ServerListener&) = delete;

  int fd() const { return fd_; }
  bool is_unix() const { return !path_.empty(); }
  uint16_t port() const { return port_; }

  // A new connection, close-on-exec and blocking, or -1 with errno.
  int accept() const;

 private:
  static std::vector<ServerListener> listen_on_all(const addrinfo& addresses, uint16_t port,
                                                   const std::string& name);
  static ServerListener listen_on(const addrinfo& address, uint16_t port, const std::string& name);
  ServerListener(int fd, uint16_t port) : fd_(fd), port_(port) {}
  ServerListener(int fd, std::string path);

  int fd_;
  uint16_t port_;
  std::string path_;  // empty for TCP
  dev_t device_ = 0;  // of the socket file
  ino_t inode_ = 0;
};

}  // namespace kvstore
