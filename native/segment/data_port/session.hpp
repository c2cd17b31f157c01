// One connection of the data port, from HELLO to its end (docs/protocol.md sections 4 and 6). Its thread runs
// run(); anyone may call shutdown(). What the session holds in the store (slots being written, reads) is
// given back when run() returns.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/put_request.hpp"
#include "protocol/wire.hpp"
#include "segment/budgets.hpp"
#include "segment/data_port/extension.hpp"
#include "segment/data_port/holds.hpp"
#include "segment/data_port/put_transfer.hpp"
#include "segment/data_port/registered_buffers.hpp"
#include "segment/data_port/socket.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {

struct DataServerCounters {
  std::atomic<uint64_t> connections_total{0}, requests{0}, bad_requests{0}, refused_connections{0},
      unauthorized{0}, internal_errors{0}, ungreeted_dropped{0}, unix_sockets_remade{0};
};

class ServerSession;

// What answers each op. Filled before the first session, constant from then on.
class OpTable {
 public:
  using Handler = std::function<void(ServerSession&, wire::Reader& body)>;
  // The ops of the data port itself.
  OpTable();
  // Throws std::logic_error when the op has a handler already.
  void add(wire::Op op, Handler handler);
  // Throws wire::WireError for an op that nobody added.
  const Handler& at(uint8_t op) const;

 private:
  std::array<Handler, 256> handlers_;
};

// What all sessions of a server share; outlives them.
struct SessionContext {
  SegmentStore& store;
  std::vector<std::string> tokens;  // see DataServerOptions
  std::chrono::milliseconds idle_timeout;
  uint32_t connections_max = 0;             // that have said HELLO
  std::atomic<uint32_t> greeted{0};         // now
  std::chrono::milliseconds stall_timeout;  // see DataServerOptions
  std::atomic<uint32_t> sessions{0};        // ever
  OpTable ops;
  uint32_t tcp_features = 0;  // bits that extensions add to HELLO's reply
  uint32_t unix_features = 0;
  std::atomic<bool> stopping{false};
  DataServerCounters counters;
};

inline void count_ungreeted_dropped(SessionContext& context) {
  context.counters.ungreeted_dropped.fetch_add(1, std::memory_order_relaxed);
  context.store.budgets().ungreeted.count_refused();
}

class ServerSession final : public ExtensionSession {
 public:
  static constexpr auto kHelloTimeout = std::chrono::seconds(5);

  // Owns `fd`. `since`: when it was accepted.
  ServerSession(SessionContext& context, int fd, bool is_unix,
                SegmentStore::Clock::time_point since = SegmentStore::Clock::now());

  void run() noexcept;
  void shutdown() { socket_.shutdown(); }
  // The peer has said HELLO, with the right token. From any thread.
  bool is_greeted() const { return greeted_.load(std::memory_order_relaxed); }

  bool is_unix() const override { return socket_.is_unix(); }
  int fd() const override { return socket_.fd(); }
  SessionPart* part() const override { return part_.get(); }
  void set_part(std::unique_ptr<SessionPart> part) override;
  void reply(const wire::Writer& fields) override;

 private:
  friend class OpTable;
  using Clock = SegmentStore::Clock;

  bool hello();
  // False: the connection has to end.
  bool serve_one();
  bool read_request();
  bool decode_request_header(const uint8_t* header);
  // False: over the cap of all sessions.
  bool read_body();
  void forget_large_body() noexcept;

  void on_pin(wire::Reader& body);
  void on_locate(wire::Reader& body);
  void on_get(wire::Reader& body);
  void on_put(wire::Reader& body);
  void on_remove(wire::Reader& body);
  void on_unpin(wire::Reader& body);
  void on_attach(wire::Reader& body);
  void on_register(wire::Reader& body);
  void on_pull(wire::Reader& body);
  void on_suspect(wire::Reader& body);
  void on_unregister(wire::Reader& body);
  void on_commit(wire::Reader& body);
  void on_keep(wire::Reader& body);
  void on_fetch(wire::Reader& body);
  // What is over the budget of held bytes is waited for a little.
  std::vector<ReadEntry> acquire_or_wait(const KeyBlock& block, const uint8_t* expected_lengths);
  bool committed(bool wanted, uint64_t seq, uint32_t timeout_ms);
  bool wait_durable(uint64_t seq, uint32_t timeout_ms);
  void end_batch(bool commit_asked) noexcept;
  // What is left to do once the objects are sealed: their wish, the commit, the reply.
  void finish_put(const PutRequest& put, const SegmentStore::Statuses& statuses, uint64_t seq);
  void require_unix() const;
  RemoteMemory& require_remote_memory() const;

  void reply_statuses(wire::Status status, const SegmentStore::Statuses& statuses);
  void reply_error(wire::Status status, std::string_view text);
  // `reply` is a whole body; `payload` follows it.
  void send_reply(const wire::Writer& reply, const std::vector<iovec>& payload = {},
                  uint64_t payload_bytes = 0, int pass_fd = -1);

  SessionContext& context_;
  SegmentStore& store_;
  ServerSocket socket_;
  const uint32_t id_;
  const Clock::time_point since_;
  BudgetShare ungreeted_;
  BudgetShare connected_;
  std::atomic<bool> greeted_{false};
  SessionHolds holds_;
  PutBatch batch_;  // that this connection is sending
  RegisteredBuffers buffers_;
  std::unique_ptr<SessionPart> part_;  // null until the client asks for it
  wire::Header request_;
  std::vector<uint8_t> body_;
  BudgetShare body_bytes_;      // of a large body
  bool payload_taken_ = false;  // the payload of the current request is off the socket
  uint64_t durable_seq_ = 0;    // journal number of the newest object this connection put
};

}  // namespace kvstore
