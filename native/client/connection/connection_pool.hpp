// The framed connections to one address of one peer. Thread-safe; must outlive its leases.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "client/client_counters.hpp"
#include "client/connection/frame_connection.hpp"

namespace kvstore {

struct PeerAddress {
  std::string host;
  uint16_t port = 0;
  std::string unix_path;  // when not empty: this, and not host and port

  bool operator==(const PeerAddress& o) const {
    return host == o.host && port == o.port && unix_path == o.unix_path;
  }
};

// "master HOST:PORT" or "segment HOST:PORT": a master takes whoever it is, a segment is one that a map has named.
std::string peer_subject(const PeerAddress& address, bool is_segment);

class ConnectionPool {
 public:
  ConnectionPool(PeerAddress address, HelloOptions hello, const PeerId& expected, size_t connections_max,
                 int connect_timeout_ms, ClientCounters& counters);

  // One connection, for one caller. keep() after a complete exchange gives it back to the pool; a lease that ends without
  // keep() shuts its connection down, because a reply may still be on its way.
  class Lease {
   public:
    Lease() = default;
    ~Lease() { release(); }
    Lease(Lease&& other) noexcept
        : pool_(other.pool_), connection_(std::move(other.connection_)), kept_(other.kept_) {
      other.pool_ = nullptr;
    }
    Lease& operator=(Lease&& other) noexcept {
      release();
      pool_ = other.pool_;
      connection_ = std::move(other.connection_);
      kept_ = other.kept_;
      other.pool_ = nullptr;
      return *this;
    }
    FrameConnection* operator->() const { return connection_.get(); }
    FrameConnection& operator*() const { return *connection_; }
    explicit operator bool() const { return connection_ != nullptr; }
    void keep() { kept_ = true; }
    void release();

   private:
    friend class ConnectionPool;
    ConnectionPool* pool_ = nullptr;
    std::unique_ptr<FrameConnection> connection_;
    bool kept_ = false;
  };

  // An idle connection, or a new one; waits until the deadline when all are in use.
  NetStatus acquire(const Deadline& deadline, Lease* lease);
  // Up to `wanted` connections: the first as acquire(), further ones only where that takes no waiting for other callers.
  NetStatus acquire_several(size_t wanted, const Deadline& deadline, std::vector<Lease>* leases);

  const PeerAddress& address() const { return address_; }
  // What troubles call this peer.
  const std::string& subject() const { return subject_; }

 private:
  NetStatus acquire_one(bool wait, const Deadline& deadline, Lease* lease);
  NetStatus open(const Deadline& deadline, std::unique_ptr<FrameConnection>* out);
  NetStatus connect(const Deadline& deadline, std::unique_ptr<FrameConnection>* out);
  void give_back(std::unique_ptr<FrameConnection> connection, bool healthy);

  const PeerAddress address_;
  const HelloOptions hello_;
  const PeerId expected_;
  const std::string subject_;
  const size_t connections_max_;
  const int connect_timeout_ms_;
  ClientCounters& counters_;

  Mutex mutex_;
  CondVar returned_;
  std::vector<std::unique_ptr<FrameConnection>> idle_ GUARDED_BY(mutex_);
  size_t in_use_ GUARDED_BY(mutex_) = 0;
  uint64_t failed_ GUARDED_BY(mutex_) = 0;  // connections that failed and were not replaced yet
};

}  // namespace kvstore
