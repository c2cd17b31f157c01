// Connecting to a host of several addresses: one that refuses or says nothing must not stand in the way of one that works.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "check.hpp"
#include "client/connection/tcp_connect.hpp"

using namespace kvstore;

namespace {

constexpr int64_t kLateMsMax = 200;

// A socket on loopback that listens, or refuses, or lets connections hang.
class Port {
 public:
  explicit Port(int family, int backlog = 16)
      : fd_(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    address_.storage.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) {
      reinterpret_cast<sockaddr_in&>(address_.storage).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address_.size = sizeof(sockaddr_in);
    } else {
      reinterpret_cast<sockaddr_in6&>(address_.storage).sin6_addr = in6addr_loopback;
      address_.size = sizeof(sockaddr_in6);
    }
    CHECK_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address_.storage), address_.size), 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address_.storage), &address_.size);
    if (backlog >= 0) CHECK_EQ(::listen(fd_, backlog), 0);
  }
  ~Port() {
    for (const int fd : waiting_) ::close(fd);
    ::close(fd_);
  }

  static constexpr int kRefuses = -1;

  // Fills the queue of what nobody accepts: from now on the kernel leaves a SYN unanswered.
  void fill() {
    for (int i = 0; i < 8; ++i) {
      waiting_.push_back(::socket(address_.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      (void)::connect(waiting_.back(), reinterpret_cast<sockaddr*>(&address_.storage), address_.size);
    }
  }
  const SocketAddress& address() const { return address_; }
  uint16_t port() const {
    return ntohs(address_.family() == AF_INET
                     ? reinterpret_cast<const sockaddr_in&>(address_.storage).sin_port
                     : reinterpret_cast<const sockaddr_in6&>(address_.storage).sin6_port);
  }
  bool has_connection() const {
    const int fd = ::accept(fd_, nullptr, nullptr);
    if (fd >= 0) ::close(fd);
    return fd >= 0;
  }

 private:
  int fd_;
  SocketAddress address_;
  std::vector<int> waiting_;
};

struct Outcome {
  NetStatus status;
  size_t winner = SIZE_MAX;
  int64_t ms = 0;
};

Outcome connect(const std::vector<SocketAddress>& addresses, int64_t deadline_ms) {
  const auto start = Deadline::Clock::now();
  ClientSocket socket;
  Outcome out{};
  out.status = connect_any(addresses, Deadline::after_ms(deadline_ms), &socket, &out.winner);
  out.ms = std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - start).count();
  CHECK_EQ(socket.valid(), out.status == NetStatus::kOk);
  return out;
}

}  // namespace

TEST(an_address_that_refuses_is_passed_over_at_once) {
  const Port refuses(AF_INET6, Port::kRefuses), listens(AF_INET);
  const Outcome out = connect({refuses.address(), listens.address()}, 2000);
  CHECK_EQ(out.status, NetStatus::kOk);
  CHECK_EQ(out.winner, size_t{1});
  CHECK(out.ms < kLateMsMax);
  CHECK(listens.has_connection());
}

TEST(an_address_that_says_nothing_costs_its_head_start) {
  Port silent(AF_INET6, 0);
  silent.fill();
  const Port listens(AF_INET);
  const Outcome out = connect({silent.address(), silent.address(), listens.address()}, 300);
  CHECK_EQ(out.status, NetStatus::kOk);
  CHECK_EQ(out.winner, size_t{2});
  CHECK(out.ms >= 150 && out.ms < 300);
}

TEST(the_first_address_wins_where_it_answers) {
  const Port first(AF_INET), second(AF_INET6);
  CHECK_EQ(connect({first.address(), second.address()}, 2000).winner, size_t{0});
  CHECK(!second.has_connection());
}

TEST(addresses_that_all_refuse_are_unreachable_at_once) {
  const Port a(AF_INET, Port::kRefuses), b(AF_INET6, Port::kRefuses);
  const Outcome out = connect({a.address(), b.address()}, 2000);
  CHECK_EQ(out.status, NetStatus::kUnreachable);
  CHECK(out.ms < kLateMsMax);
  CHECK_EQ(connect({}, 2000).status, NetStatus::kUnreachable);
}

TEST(addresses_that_all_say_nothing_cost_the_deadline) {
  Port silent(AF_INET, 0);
  silent.fill();
  const Outcome out = connect(std::vector<SocketAddress>(16, silent.address()), 100);
  CHECK_EQ(out.status, NetStatus::kTimeout);
  CHECK(out.ms >= 100 && out.ms < 100 + kLateMsMax);
}

TEST(a_probe_of_a_doubtful_peer_gives_up_early) {
  Port silent(AF_INET, 0);
  silent.fill();
  const auto start = Deadline::Clock::now();
  ClientSocket socket;
  size_t winner = 0;
  CHECK_EQ(connect_any({silent.address()}, Deadline::after_ms(5000).with_stall_ms(50), &socket, &winner),
           NetStatus::kTimeout);
  CHECK(Deadline::Clock::now() - start < std::chrono::milliseconds(50 + kLateMsMax));
}

TEST(a_name_is_looked_up_and_connected_to) {
  const Port port(AF_INET);
  ClientSocket socket;
  CHECK_EQ(connect_tcp("localhost", port.port(), Deadline::after_ms(2000), &socket), NetStatus::kOk);
  CHECK(port.has_connection());
}

TEST_MAIN()
