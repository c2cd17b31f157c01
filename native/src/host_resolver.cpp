#include "kvstore/host_resolver.hpp"

#include <netdb.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace kvstore {
namespace {

struct Lookup {
  bool running = false;
  bool found = false;
  SocketAddress address;
  Deadline::Clock::time_point fresh_until{};
};

struct Names {
  std::mutex mutex;
  std::condition_variable answered;
  std::map<std::string, Lookup> by_host;
};

// Never destroyed: a lookup may still be running when the process exits.
Names& names() {
  static Names* const all = new Names;
  return *all;
}

void set_port(SocketAddress* address, uint16_t port) {
  if (address->storage.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in*>(&address->storage)->sin_port = htons(port);
  else
    reinterpret_cast<sockaddr_in6*>(&address->storage)->sin6_port = htons(port);
}

bool query(const char* host, int flags, SocketAddress* out) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host, nullptr, &hints, &found) != 0) return false;
  bool usable = false;
  for (const addrinfo* a = found; a != nullptr && !usable; a = a->ai_next) {
    usable = (a->ai_family == AF_INET || a->ai_family == AF_INET6) && a->ai_addrlen <= sizeof(out->storage);
    if (!usable) continue;
    std::memcpy(&out->storage, a->ai_addr, a->ai_addrlen);
    out->size = a->ai_addrlen;
  }
  freeaddrinfo(found);
  return usable;
}

void look_up(const std::string& host) {
  SocketAddress address;
  const bool found = query(host.c_str(), AI_ADDRCONFIG, &address);
  Names& all = names();
  std::lock_guard<std::mutex> lock(all.mutex);
  Lookup& lookup = all.by_host[host];
  lookup.running = false;
  lookup.found = found;
  lookup.address = address;
  lookup.fresh_until = Deadline::Clock::now() + std::chrono::milliseconds(kResolveTtlMs);
  all.answered.notify_all();
}

}  // namespace

bool resolve_host(const std::string& host, uint16_t port, const Deadline& deadline, SocketAddress* out) {
  if (query(host.c_str(), AI_NUMERICHOST, out)) {
    set_port(out, port);
    return true;
  }
  Names& all = names();
  std::unique_lock<std::mutex> lock(all.mutex);
  if (all.by_host.size() >= kResolvedNamesMax && all.by_host.count(host) == 0) return false;
  Lookup* lookup = &all.by_host[host];
  if (!lookup->running && Deadline::Clock::now() >= lookup->fresh_until) {
    try {
      std::thread(look_up, host).detach();
    } catch (const std::system_error&) {  // no thread to be had: the host can't be found now
      return false;
    }
    lookup->running = true;
  }
  while (lookup->running) {
    if (all.answered.wait_until(lock, deadline.end()) == std::cv_status::timeout && lookup->running)
      return false;
  }
  if (!lookup->found) return false;
  *out = lookup->address;
  set_port(out, port);
  return true;
}

}  // namespace kvstore
