// Host name to socket address, within a deadline. Thread-safe.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "kvstore/deadline.hpp"

namespace kvstore {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

// Numeric addresses are converted in place. A name is looked up on a thread of its own, because the system's resolver knows
// no deadline; the thread holds no memory of the caller and ends by itself, and its answer is kept for kResolveTtlMs, so that a
// slow name server costs one call's deadline and not every call's. False when there is no answer in time.
bool resolve_host(const std::string& host, uint16_t port, const Deadline& deadline, SocketAddress* out);

constexpr int64_t kResolveTtlMs = 5000;
constexpr size_t kResolvedNamesMax = 1024;

}  // namespace kvstore
