// The link of a segment to the master that has registered it: one thread that owns one TCP connection to the master's
// directory port and carries journal, inventory and heartbeats up, acknowledgements down. It lasts as long as the
// registration does: when it ends, for whatever reason, the segment registers again and makes a new one.
//
// Public methods are thread-safe; no exception leaves the thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.hpp"
#include "base/process_owner.hpp"
#include "segment/link/conversation.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {

struct JournalLinkOptions {
  std::string host;  // of the master's directory port
  uint16_t port = 0;
  LinkOptions link;
  std::chrono::milliseconds connect_timeout{3000};
  // A master that takes none of what is sent for so long is left.
  std::chrono::milliseconds stall_timeout{4000};
};

class JournalLink {
 public:
  struct End {
    std::string kind;  // stopped, unreachable, refused, silent, stalled, lost, protocol, failed
    std::string text;
  };

  // Starts to connect. Nobody else drives the pump until the link has ended; then it is detached. Throws std::system_error.
  JournalLink(std::shared_ptr<SegmentStore> store, std::shared_ptr<JournalPump> pump,
              const JournalLinkOptions& options);
  ~JournalLink();
  JournalLink(const JournalLink&) = delete;
  JournalLink& operator=(const JournalLink&) = delete;

  // Readable when linked(), ended() or take_refusals() has something new, until events_seen(). Owned by the link.
  int event_fd() const { return event_fd_; }
  void events_seen();

  // The master has answered: what is journalled is being sent.
  bool linked() const { return linked_.load(); }
  // Why it is over; nothing while it is not.
  std::optional<End> ended() const;
  // Entries that the master has left out, since the last call; the newest of them.
  std::deque<LinkConversation::Refusal> take_refusals();
  uint64_t heartbeats_sent() const { return heartbeats_sent_.load(); }

  // Ends it, within 100 ms. Idempotent; nothing in a forked child, whose copy must not be destroyed either.
  void stop();

 private:
  void run() noexcept;
  void converse();
  void publish(LinkConversation& conversation);
  void end(const std::string& kind, const std::string& text);
  static void signal(int fd);

  const ProcessOwner owner_;
  const std::shared_ptr<SegmentStore> store_;
  const std::shared_ptr<JournalPump> pump_;
  const JournalLinkOptions options_;
  int event_fd_ = -1;
  int stop_fd_ = -1;
  std::atomic<bool> linked_{false};
  std::atomic<uint64_t> heartbeats_sent_{0};
  mutable Mutex mutex_;
  std::optional<End> ended_ GUARDED_BY(mutex_);
  std::deque<LinkConversation::Refusal> refusals_ GUARDED_BY(mutex_);
  Mutex stop_mutex_;  // one stop at a time
  std::thread thread_ GUARDED_BY(stop_mutex_);
};

}  // namespace kvstore
