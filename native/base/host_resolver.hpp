// Host names to socket addresses, within a deadline. Thread-safe.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/process_owner.hpp"

namespace kvstore {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  void set_port(uint16_t port);
  bool same_host(const SocketAddress& other) const;  // whatever the ports
};

// All addresses of a name, in the order to try them. Lookups run on threads of their own, because the system's resolver knows no
// deadline: a call waits for one no longer than its own, and one that knows earlier addresses hardly at all. What was found last
// is kept when a later lookup fails or is late, so that a dead name server blinds nobody who knew the address.
class HostResolver {
 public:
  // The addresses of a name, none when there is no answer; may block for long, and throw.
  using Query = std::function<std::vector<SocketAddress>(const std::string& host)>;

  struct Times {
    int64_t fresh_ms = 5000;     // so long an answer is not asked for again
    int64_t retry_ms = 1000;     // the same after a failure
    int64_t known_wait_ms = 50;  // so long a late answer is waited for when an earlier one is there
  };

  explicit HostResolver(Query query) : HostResolver(std::move(query), Times()) {}
  HostResolver(Query query, const Times& times);
  // The one of this process, on the system's resolver. A forked child has its own: threads that looked names up stayed behind.
  static HostResolver& process();

  // In the order to try: the one that was connected to last, then families by turns. Numeric hosts are converted in place. Empty
  // when there is no answer in time, and never an exception.
  std::vector<SocketAddress> resolve(const std::string& host, uint16_t port,
                                     const Deadline& deadline) noexcept;
  // This address of the host works.
  void connected(const std::string& host, const SocketAddress& address) noexcept;
  // None of its addresses does: the name may lead elsewhere by now, and is looked up again soon.
  void unreachable(const std::string& host) noexcept;

  static constexpr size_t kNamesMax = 1024;    // of those used least lately the rest is forgotten
  static constexpr size_t kLookupsMax = 32;    // threads at a time; further names wait for one
  static constexpr size_t kAddressesMax = 16;  // of a name; the rest is left out

 private:
  struct Name;
  struct State;
  std::vector<SocketAddress> look_up(const std::string& host, const Deadline& deadline);

  const ProcessOwner owner_;
  const std::shared_ptr<State> state_;  // shared with the lookups, which may outlive the resolver
};

}  // namespace kvstore
