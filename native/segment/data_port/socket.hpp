// One accepted connection of the data port: buffered exact reads, scatter reads straight into slots, gather
// writes straight from them, descriptors that ride along on unix sockets. Blocking calls; a peer that makes
// no progress for kStallTimeout (while it holds slots: for what its patience says), or breaks off, ends the
// connection by an exception. Used by one thread; only shutdown() may come from another.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <vector>

#include "base/socket_companion.hpp"
#include "segment/budget.hpp"

namespace kvstore {

// The peer is gone, silent for too long, or out of its mind: nothing to answer, close.
class ConnectionEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ServerSocket {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kStallTimeout = std::chrono::seconds(30);
  static constexpr size_t kBufferBytes = 16384;
  static constexpr size_t kIovMax = 1024;        // IOV_MAX of Linux
  static constexpr size_t kDescriptorsMax = 16;  // received and not yet claimed

  // Owns `fd`.
  ServerSocket(int fd, bool is_unix);
  ~ServerSocket();
  ServerSocket(const ServerSocket&) = delete;
  ServerSocket& operator=(const ServerSocket&) = delete;

  bool is_unix() const { return is_unix_; }
  int fd() const { return fd_; }

  // True when there is something to read (or an end to see), false at the deadline.
  bool wait_readable(Clock::time_point deadline, SocketCompanion* companion = nullptr);
  // Whether something was read ahead, or is there to be read. Never blocks.
  bool has_more() const noexcept;
  void read(void* to, size_t size, Clock::time_point deadline);
  // The same, but over at the deadline whatever trickles in: for peers that have not shown yet who they are.
  void read_in_time(void* to, size_t size, Clock::time_point deadline);
  // Reads at least one byte into the vectors (at most kIovMax of them), which it may change. Returns how
  // many.
  size_t read_some(iovec* vectors, size_t count, Clock::time_point deadline);
  // Sends all of it. The vectors are used up. `pass_fd` (unix) rides on the first byte.
  void write(std::vector<iovec>& vectors, Clock::time_point deadline, int pass_fd = -1);
  // Until so many bytes, at most kBufferBytes, are there to read. Blocks like read_some.
  void await_bytes(size_t least = 1);

  // How long a peer may take over bytes for which slots are held: a transfer goes on for as long as it makes
  // progress, unless it is slow and others wait for what it holds of `budget`.
  struct Patience {
    std::chrono::milliseconds stall;  // without a byte
    const Budget* budget;
  };
  // Patience counts in its scope, and no deadlines.
  class Transfer {
   public:
    Transfer(ServerSocket& socket, const Patience& patience);
    ~Transfer() { socket_.transfer_ = nullptr; }
    // Time that went by on this side is not the peer's.
    void forgive(Clock::duration time) { began_ += time; }
    uint64_t bytes() const { return bytes_; }
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

   private:
    friend class ServerSocket;
    ServerSocket& socket_;
    const Patience patience_;
    Clock::time_point began_ = Clock::now();
    uint64_t bytes_ = 0;
  };

  // True once the peer has closed its end, whatever it sent before that is still unread. Never blocks.
  bool peer_has_closed() const;
  // The oldest descriptor received and not claimed yet, now the caller's; -1 when there is none.
  int take_descriptor();

  // Tells the peer that nothing more comes, and reads on for a moment so that it gets to see our last reply.
  void linger();
  // From any thread: wakes blocked calls, which then throw.
  void shutdown();

 private:
  size_t receive(iovec* vectors, size_t count, int flags);  // 0 only with MSG_DONTWAIT and nothing there
  void collect_descriptors(const msghdr& message);
  void check(Clock::time_point deadline) const;
  void progressed(size_t bytes);
  void waited();  // for one tick, in vain

  int fd_;
  bool is_unix_;
  std::unique_ptr<uint8_t[]> buffer_;
  size_t buffered_from_ = 0;
  size_t buffered_to_ = 0;
  Transfer* transfer_ = nullptr;  // that is under way
  uint32_t ticks_waited_ = 0;     // since the last byte
  std::deque<int> descriptors_;
};

// Time that a transfer of so many bytes may take in all before the peer counts as stalled.
ServerSocket::Clock::time_point transfer_deadline(uint64_t bytes);

}  // namespace kvstore
