// Serves the data port of a segment store on TCP and, for peers on the same host, a unix socket: one
// acceptor, one thread a connection that has begun to speak. Public methods are thread-safe; no exception leaves a thread.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/process_owner.hpp"
#include "segment/data_port/listener.hpp"
#include "segment/data_port/session.hpp"
#include "segment/data_port/strangers.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {

struct DataServerOptions {
  std::string tcp_host;
  uint16_t tcp_port = 0;  // 0: any free one
  std::string unix_path;  // empty: none
  // Peers need one of them; none: an empty one.
  std::vector<std::string> tokens;
  uint32_t connections_max = 1024;
  // Connections of a listener that have not said HELLO yet. The oldest makes room for a newcomer; one that says nothing
  // does so first.
  uint32_t ungreeted_max = 256;
  uint32_t idle_timeout_ms = 600000;
  // A connection for whose transfer slots are held is ended when no byte has passed for so long.
  uint32_t stall_timeout_ms = 2000;
  std::vector<DataPortExtensionType> extensions;  // there to choose from
  OptionTexts extension_options;                  // by the names that they declare
};

class DataServer {
 public:
  // Binds and starts. Throws std::system_error naming the address, std::invalid_argument, or what an extension throws that is required and
  // can't be had.
  DataServer(std::shared_ptr<SegmentStore> store, const DataServerOptions& options);
  ~DataServer();
  DataServer(const DataServer&) = delete;
  DataServer& operator=(const DataServer&) = delete;

  uint16_t tcp_port() const { return tcp_port_; }  // also after stop()
  std::map<std::string, uint64_t> stats();
  // The names of those that are on.
  const std::vector<std::string>& extensions() const { return names_; }
  // Extensions that are wanted and not offered, and why.
  const std::map<std::string, std::string>& refusals() const { return refusals_; }
  // Listens on the unix path anew, after somebody has removed the socket file: clients that come from now on find it, connections
  // stay. Throws std::system_error; nothing without a path, or once stopped.
  void remake_unix_socket();
  // Closes every connection and joins every thread. Idempotent; nothing in a forked child, whose copy must not be destroyed either.
  void stop();

 private:
  const ProcessOwner owner_;
  struct Connection {
    Connection(SessionContext& context, int fd, bool is_unix, SegmentStore::Clock::time_point accepted)
        : session(context, fd, is_unix, accepted), since(accepted) {}
    ServerSession session;
    std::thread thread;
    const SegmentStore::Clock::time_point since;
    bool ended = false;    // guarded by mutex_
    bool dropped = false;  // guarded by mutex_; told to end for a newer one
  };

  void open_extensions();
  void accept_loop() noexcept;
  // As many as are there, up to a bound.
  void accept_from(const ServerListener& listener) EXCLUDES(mutex_);
  // False: nobody is there, or none can be had.
  bool accept_one(const ServerListener& listener) EXCLUDES(mutex_);
  // Somebody who is told to go makes room where there is none. False: nobody can be told to yet.
  bool make_room(bool is_unix) EXCLUDES(mutex_);
  void start_session(int fd, bool is_unix, SegmentStore::Clock::time_point since) EXCLUDES(mutex_);
  struct Room {
    bool is_there;
    std::vector<Connection*> crowd;  // one of whom has to leave for it, the oldest first; none: nobody has to
  };
  // The oldest that has sent nothing that is still unread, or has gone; the oldest of all where there is none. What a busy machine has
  // not come round to reading may be a HELLO.
  static Connection* idlest(const std::vector<Connection*>& ungreeted);
  // For one more connection that has not greeted yet.
  Room room(bool is_unix) REQUIRES(mutex_);
  bool has_room(bool is_unix) EXCLUDES(mutex_);
  void reap_ended() EXCLUDES(mutex_);
  void wake_acceptor();

  std::shared_ptr<SegmentStore> store_;
  const DataServerOptions options_;
  std::map<std::string, std::string> refusals_;
  std::vector<std::unique_ptr<DataPortExtension>> extensions_;
  std::vector<std::string> names_;
  SessionContext context_;
  // These four are touched by the acceptor alone while it runs.
  Strangers strangers_;
  std::vector<ServerListener> tcp_;       // one for each address of the host
  std::unique_ptr<ServerListener> unix_;  // null: none
  std::vector<pollfd> polled_;            // the wake-up, unix, TCP, then strangers
  uint16_t tcp_port_ = 0;
  int wake_fd_;
  Mutex stop_mutex_;  // one stop at a time
  std::thread acceptor_ GUARDED_BY(stop_mutex_);
  Mutex mutex_;
  std::list<std::unique_ptr<Connection>> connections_ GUARDED_BY(mutex_);
  std::unique_ptr<ServerListener> new_unix_ GUARDED_BY(mutex_);  // for the acceptor to take
};

}  // namespace kvstore
