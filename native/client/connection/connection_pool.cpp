#include "client/connection/connection_pool.hpp"

#include <algorithm>

#include "client/connection/tcp_connect.hpp"

namespace kvstore {

std::string peer_subject(const PeerAddress& address, bool is_segment) {
  std::string subject = is_segment ? "segment " : "master ";
  if (!address.unix_path.empty()) return subject + address.unix_path;
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  subject += is_ipv6 ? "[" + address.host + "]" : address.host;
  return subject + ":" + std::to_string(address.port);
}

ConnectionPool::ConnectionPool(PeerAddress address, HelloOptions hello, const PeerId& expected,
                               size_t connections_max, int connect_timeout_ms, ClientCounters& counters)
    : address_(std::move(address)),
      hello_(std::move(hello)),
      expected_(expected),
      subject_(peer_subject(address_, expected != kAnyPeer)),
      connections_max_(std::max<size_t>(connections_max, 1)),
      connect_timeout_ms_(connect_timeout_ms),
      counters_(counters) {}

void ConnectionPool::Lease::release() {
  if (pool_ == nullptr || connection_ == nullptr) return;
  pool_->give_back(std::move(connection_), kept_);
  pool_ = nullptr;
  kept_ = false;
}

void ConnectionPool::give_back(std::unique_ptr<FrameConnection> connection, bool healthy) {
  std::vector<std::unique_ptr<FrameConnection>> doomed;
  {
    const MutexLock lock(mutex_);
    --in_use_;
    if (healthy) {
      idle_.push_back(std::move(connection));
    } else {
      // Where one connection failed the idle ones are suspect too: a peer that vanished says nothing on them.
      failed_ += 1 + idle_.size();
      doomed.swap(idle_);
      doomed.push_back(std::move(connection));
    }
  }
  returned_.notify_one();
  for (const auto& c : doomed) c->shutdown();
}

NetStatus ConnectionPool::connect(const Deadline& deadline, std::unique_ptr<FrameConnection>* out) {
  const Deadline connect_deadline = deadline.within_ms(connect_timeout_ms_);
  ClientSocket socket;
  NetStatus status = address_.unix_path.empty()
                         ? connect_tcp(address_.host, address_.port, connect_deadline, &socket)
                         : ClientSocket::connect_unix(address_.unix_path, connect_deadline, &socket);
  if (status != NetStatus::kOk) return status;
  *out = std::make_unique<FrameConnection>(std::move(socket));
  return (*out)->hello(hello_, expected_, connect_deadline);
}

NetStatus ConnectionPool::open(const Deadline& deadline, std::unique_ptr<FrameConnection>* out) {
  std::unique_ptr<FrameConnection> fresh;
  const auto began = Deadline::Clock::now();
  const NetStatus status = connect(deadline, &fresh);
  switch (status) {
    case NetStatus::kOk:
      counters_.add(Counter::kConnects);
      *out = std::move(fresh);
      break;
    case NetStatus::kRefused:
      counters_.add(Counter::kRefusedHellos);
      if (fresh == nullptr)  // before anything was said
        counters_.troubles.failed(subject_, Trouble::kNotRightful);
      else
        counters_.troubles.failed(subject_, trouble_of(fresh->refusal()), fresh->refusal_text());
      break;
    case NetStatus::kTimeout:
      if (tells_of_peer(status, deadline, began)) counters_.troubles.failed(subject_, Trouble::kNoAnswer);
      break;
    case NetStatus::kUnresolved:
      counters_.troubles.failed(subject_, Trouble::kUnresolved);
      break;
    case NetStatus::kUnreachable:
      counters_.troubles.failed(subject_, Trouble::kUnreachable);
      break;
    case NetStatus::kClosed:  // before it said HELLO: a peer of ours that is stopping or full does so, too
      counters_.troubles.failed(subject_, Trouble::kClosed);
      break;
    case NetStatus::kProtocol:
      counters_.troubles.failed(subject_, Trouble::kNotOurs);
      break;
  }
  return status;
}

NetStatus ConnectionPool::acquire_one(bool wait, const Deadline& deadline, Lease* lease) {
  std::unique_ptr<FrameConnection> connection;
  {
    const Deadline::Wait waiting(deadline);
    MutexLock lock(mutex_);
    for (;;) {
      while (!idle_.empty()) {
        connection = std::move(idle_.back());
        idle_.pop_back();
        if (connection->idle_and_open()) break;
        connection.reset();
        ++failed_;
      }
      if (connection != nullptr || in_use_ < connections_max_) break;
      if (!wait) return NetStatus::kUnreachable;
      returned_.wait_until(mutex_, waiting.slice_end());
      if (!idle_.empty() || in_use_ < connections_max_) continue;
      // Also where it was woken: on a busy pool others are faster each time.
      lock.unlock();
      const bool over = waiting.over();
      lock.lock();
      if (over && idle_.empty() && in_use_ >= connections_max_) return NetStatus::kTimeout;
    }
    ++in_use_;
  }
  if (connection == nullptr) {
    const NetStatus status = open(deadline, &connection);
    const MutexLock lock(mutex_);
    if (status != NetStatus::kOk) {
      --in_use_;
      returned_.notify_one();
      return status;
    }
    if (failed_ > 0) {
      --failed_;
      counters_.add(Counter::kReconnects);
    }
  }
  lease->release();
  lease->pool_ = this;
  lease->connection_ = std::move(connection);
  lease->kept_ = false;
  return NetStatus::kOk;
}

NetStatus ConnectionPool::acquire(const Deadline& deadline, Lease* lease) {
  return acquire_one(true, deadline, lease);
}

NetStatus ConnectionPool::acquire_several(size_t wanted, const Deadline& deadline,
                                          std::vector<Lease>* leases) {
  for (size_t i = 0; i < std::max<size_t>(wanted, 1); ++i) {
    Lease lease;
    const NetStatus status = acquire_one(i == 0, deadline, &lease);
    if (status != NetStatus::kOk) return i == 0 ? status : NetStatus::kOk;
    leases->push_back(std::move(lease));
  }
  return NetStatus::kOk;
}

}  // namespace kvstore
