// Peers for client tests: a scripted frame server, a directory around the real index, and a real segment.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/connection/frame_connection.hpp"
#include "client/segment_map.hpp"
#include "master/directory_index.hpp"
#include "protocol/keys.hpp"
#include "segment/data_port/server.hpp"
#include "segment/segment_store.hpp"

namespace kvstore::testing {

inline bool read_all(int fd, void* to, size_t n) {
  auto* p = static_cast<uint8_t*>(to);
  while (n > 0) {
    const ssize_t got = ::recv(fd, p, n, 0);
    if (got <= 0) return false;
    p += got, n -= static_cast<size_t>(got);
  }
  return true;
}

inline bool write_all(int fd, const void* from, size_t n) {
  const auto* p = static_cast<const uint8_t*>(from);
  while (n > 0) {
    const ssize_t sent = ::send(fd, p, n, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    p += sent, n -= static_cast<size_t>(sent);
  }
  return true;
}

struct Request {
  wire::Header header;
  std::vector<uint8_t> body;
  wire::Op op() const { return static_cast<wire::Op>(header.op); }
  wire::Reader reader() const { return wire::Reader(body.data(), body.size()); }
};

inline bool read_request(int fd, Request* request) {
  uint8_t raw[wire::kHeaderBytes];
  if (!read_all(fd, raw, sizeof(raw))) return false;
  request->header = wire::decode_header(raw);
  request->body.resize(request->header.body_bytes);
  return read_all(fd, request->body.data(), request->body.size());
}

// A whole reply frame, its payload excepted.
inline std::vector<uint8_t> reply_frame(const Request& request, wire::Status status,
                                        const wire::Writer& fields, uint64_t payload_bytes = 0,
                                        uint64_t map_epoch = 0) {
  wire::Writer body;
  body.reply_prefix(status, "", map_epoch).raw(fields.data(), fields.size());
  wire::Header header = request.header;
  header.flags = wire::kFlagReply;
  header.body_bytes = static_cast<uint32_t>(body.size());
  header.payload_bytes = payload_bytes;
  std::vector<uint8_t> frame(wire::kHeaderBytes);
  wire::encode_header(header, frame.data());
  frame.insert(frame.end(), body.data(), body.data() + body.size());
  return frame;
}

inline bool send_reply(int fd, const Request& request, wire::Status status, const wire::Writer& fields,
                       uint64_t map_epoch = 0) {
  const std::vector<uint8_t> frame = reply_frame(request, status, fields, 0, map_epoch);
  return write_all(fd, frame.data(), frame.size());
}

inline bool answer_hello(int fd, const PeerId& peer_id = {}, uint32_t features = 0) {
  Request request;
  if (!read_request(fd, &request) || request.op() != wire::Op::kHello) return false;
  wire::Writer fields;
  fields.u8(wire::kVersionMax)
      .zeros(3)
      .u32(wire::kKeysMax)
      .u32(wire::kBodyBytesMax)
      .u64(wire::kPayloadBytesMax);
  fields.raw(peer_id.data(), peer_id.size()).u32(features);
  return send_reply(fd, request, wire::Status::kOk, fields);
}

// Listens on a free port of 127.0.0.1; `serve` runs on a thread of its own for each connection, which ends with it. What
// it can't read comes from a stranger on the loopback, and ends no more than that connection.
class FrameServer {
 public:
  explicit FrameServer(std::function<void(int fd)> serve) : serve_(std::move(serve)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 64) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("can't listen");
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~FrameServer() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    for (const int fd : fds_) ::shutdown(fd, SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
    for (const int fd : fds_) ::close(fd);
  }
  uint16_t port() const { return port_; }
  int connections() const { return connections_; }

 private:
  void accept_all() {
    while (!stopping_) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      ++connections_;
      fds_.push_back(fd);
      threads_.emplace_back([this, fd] {
        try {
          serve_(fd);
        } catch (const std::exception& e) {
          std::fprintf(stderr, "port %u: closed a connection: %s\n", unsigned{port_}, e.what());
        }
        ::shutdown(fd, SHUT_RDWR);
      });
    }
  }
  const std::function<void(int)> serve_;
  int listener_;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0};
  std::list<int> fds_;  // of the acceptor until it is joined
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

// A master's directory port around the real index: everything but membership and durability.
class TestDirectory {
 public:
  TestDirectory() : server_([this](int fd) { serve(fd); }) {}

  uint16_t port() const { return server_.port(); }
  DirectoryIndex& index() { return index_; }
  // All that the directory has of a segment.
  void forget(uint32_t segment) {
    index_.drop_segment(segment);
    while (index_.sweep(1000) > 0) {
    }
  }
  int requests(wire::Op op) const { return requests_[static_cast<size_t>(op)]; }
  // Takes requests and answers none.
  void hang() { hung_ = true; }

  // Adds or replaces the segment of this index.
  void set_segment(const SegmentRecord& segment) {
    std::lock_guard<std::mutex> lock(mutex_);
    segments_[segment.index] = segment;
    ++map_epoch_;
  }

 private:
  void serve(int fd) {
    if (!answer_hello(fd)) return;
    Request request;
    while (read_request(fd, &request)) {
      ++requests_[request.header.op];
      if (hung_) continue;
      wire::Writer fields;
      wire::Status status = wire::Status::kOk;
      uint64_t epoch = 0;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        status = answer(request, &fields);
        epoch = map_epoch_;
      }
      if (!send_reply(fd, request, status, fields, epoch)) return;
    }
  }

  wire::Status answer(const Request& request, wire::Writer* fields) {
    wire::Reader reader = request.reader();
    if (request.op() == wire::Op::kOpenNamespace) {
      const uint32_t identity_bytes = reader.u32("identity_bytes");
      reader.u32("name_bytes");
      const std::string identity(reader.text(identity_bytes, "identity"));
      const auto [at, fresh] = epochs_.emplace(identity, 1);
      (void)fresh;
      write_namespace(identity, at->second, fields);
      return wire::Status::kOk;
    }
    if (request.op() == wire::Op::kMap) {
      fields->u32(static_cast<uint32_t>(segments_.size())).u32(0);
      for (const auto& [index, s] : segments_) {
        fields->u32(index).u8(static_cast<uint8_t>(s.state)).zeros(3);
        fields->raw(s.segment_id.data(), 16)
            .raw(s.pool_id.data(), 16)
            .u64(s.capacity_bytes)
            .u64(s.used_bytes);
        fields->u16(static_cast<uint16_t>(s.host.size())).u16(s.tcp_port);
        fields->u16(static_cast<uint16_t>(s.unix_path.size())).u16(0);
        fields->raw(s.host.data(), s.host.size()).raw(s.unix_path.data(), s.unix_path.size());
      }
      return wire::Status::kOk;
    }
    NamespaceId ns;
    if (request.body.size() < ns.size()) throw std::length_error("a body without a namespace");
    std::memcpy(ns.data(), request.body.data(), ns.size());
    for (auto& [identity, epoch] : epochs_) {
      if (namespace_id(identity, epoch) != ns) continue;
      if (request.op() == wire::Op::kBumpNamespace) {
        write_namespace(identity, ++epoch, fields);
      } else if (request.op() == wire::Op::kExists) {
        *fields = index_.exists(request.body.data(), request.body.size());
      } else if (request.op() == wire::Op::kLookup) {
        *fields = index_.lookup(request.body.data(), request.body.size());
      } else {
        std::vector<uint32_t> live;
        for (const auto& [index, s] : segments_)
          if (s.state == wire::SegmentState::kLive) live.push_back(index);
        *fields = index_.place(request.body.data(), request.body.size(), live, 4u << 20);
      }
      return wire::Status::kOk;
    }
    return wire::Status::kStaleNamespace;
  }

  static void write_namespace(const std::string& identity, uint32_t epoch, wire::Writer* fields) {
    const NamespaceId id = namespace_id(identity, epoch);
    fields->raw(id.data(), id.size()).u32(epoch).u32(0);
  }

  std::mutex mutex_;
  DirectoryIndex index_;
  std::map<uint32_t, SegmentRecord> segments_;
  std::map<std::string, uint32_t> epochs_;
  uint64_t map_epoch_ = 1;
  std::atomic<int> requests_[256]{};
  std::atomic<bool> hung_{false};
  FrameServer server_;
};

// A real store and data port; its journal goes straight into the directory.
class TestSegment {
 public:
  TestSegment(TestDirectory& directory, uint32_t index, uint8_t pool_byte, const std::string& unix_path = "",
              uint64_t capacity_bytes = 64u << 20, DataServerOptions server = {},
              SegmentStoreOptions options = {})
      : directory_(directory), index_(index) {
    options.capacity_bytes = capacity_bytes;
    options.pool_id.fill(pool_byte);
    store_ = std::make_shared<SegmentStore>(options);
    server.tcp_host = "127.0.0.1";
    server.unix_path = unix_path;
    server_ = std::make_unique<DataServer>(store_, server);
    record_.index = index;
    record_.state = wire::SegmentState::kLive;
    record_.pool_id.fill(pool_byte);
    record_.segment_id.fill(static_cast<uint8_t>(index));
    record_.capacity_bytes = capacity_bytes;
    record_.host = "127.0.0.1";
    record_.tcp_port = server_->tcp_port();
    record_.unix_path = unix_path;
    pump_ = std::thread([this] { pump(); });
    directory_.set_segment(record_);
  }
  ~TestSegment() {
    server_->stop();
    detach();
    store_->close();
  }
  SegmentRecord record() const { return record_; }
  SegmentStore& store() { return *store_; }
  DataServer& server() { return *server_; }
  void hold_commits(bool hold) { held_ = hold; }
  // Before the directory goes away.
  void detach() {
    stopping_ = true;
    if (pump_.joinable()) pump_.join();
  }

 private:
  void pump() {
    while (!stopping_) {
      pollfd p{store_->journal().fd(), POLLIN, 0};
      if (::poll(&p, 1, 10) <= 0 || held_) {
        if (held_) ::poll(nullptr, 0, 2);
        continue;
      }
      while (const auto batch = store_->journal().drain(65536)) {
        directory_.index().apply(index_, batch->groups.data(), batch->groups.size());
        store_->journal().ack(batch->last_seq);
      }
    }
  }

  TestDirectory& directory_;
  const uint32_t index_;
  SegmentRecord record_;
  std::shared_ptr<SegmentStore> store_;
  std::unique_ptr<DataServer> server_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> held_{false};
  std::thread pump_;
};

inline int64_t elapsed_ms(Deadline::Clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - since).count();
}

}  // namespace kvstore::testing
