#include "segment/link/journal_link.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "segment/link/link_socket.hpp"

namespace kvstore {
namespace {

constexpr size_t kReceiveBytes = 16384;

int new_event_fd(const char* what) {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

}  // namespace

JournalLink::JournalLink(std::shared_ptr<SegmentStore> store, std::shared_ptr<JournalPump> pump,
                         const JournalLinkOptions& options)
    : store_(std::move(store)), pump_(std::move(pump)), options_(options) {
  event_fd_ = new_event_fd("eventfd of the journal link");
  try {
    stop_fd_ = new_event_fd("eventfd of the journal link");
    const MutexLock lock(stop_mutex_);
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    ::close(event_fd_);
    if (stop_fd_ >= 0) ::close(stop_fd_);
    throw;
  }
}

JournalLink::~JournalLink() {
  stop();
  ::close(event_fd_);
  ::close(stop_fd_);
}

void JournalLink::signal(int fd) {
  const uint64_t one = 1;
  // Can only fail when the counter is full, and then whoever waits is awake anyway.
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof(one));
}

void JournalLink::events_seen() {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(event_fd_, &count, sizeof(count));
}

void JournalLink::stop() {
  if (!owner_.is_here()) return;  // the connection is the parent's, and its thread is not here to be joined
  signal(stop_fd_);
  const MutexLock stopping(stop_mutex_);
  if (thread_.joinable()) thread_.join();
}

std::optional<JournalLink::End> JournalLink::ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

std::deque<LinkConversation::Refusal> JournalLink::take_refusals() {
  const MutexLock lock(mutex_);
  return std::exchange(refusals_, {});
}

void JournalLink::end(const std::string& kind, const std::string& text) {
  {
    const MutexLock lock(mutex_);
    ended_ = End{kind, text};
  }
  signal(event_fd_);
}

void JournalLink::run() noexcept {
  std::string kind = "failed", text = "out of memory";
  try {
    try {
      converse();
    } catch (const LinkEnded& e) {
      kind = e.kind;
      text = e.what();
    } catch (const JournalProtocolError& e) {
      kind = "protocol";
      text = e.what();
    } catch (const std::exception& e) {
      text = e.what();
    }
    pump_->detached();
    end(kind, text);
  } catch (const std::exception&) {  // no memory for the reason: it is over without words
    pump_->detached();
    const MutexLock lock(mutex_);
    ended_.emplace();
    signal(event_fd_);
  }
}

void JournalLink::publish(LinkConversation& conversation) {
  heartbeats_sent_ = conversation.heartbeats_sent();
  bool news = conversation.linked() && !linked_.exchange(conversation.linked());
  if (auto refusals = conversation.take_refusals(); !refusals.empty()) {
    news = true;
    const MutexLock lock(mutex_);
    for (LinkConversation::Refusal& refusal : refusals) {
      if (refusals_.size() >= LinkConversation::kRefusalsKept) refusals_.pop_front();
      refusals_.push_back(std::move(refusal));
    }
  }
  if (news) signal(event_fd_);
}

void JournalLink::converse() {
  LinkSocket socket(options_.host, options_.port, stop_fd_,
                    LinkSocket::Clock::now() + options_.connect_timeout);
  const auto usage = [this] {
    const SegmentStore::Usage u = store_->usage();
    HeartbeatMessage message{u.used_bytes,
                             u.object_count,
                             u.pinned_bytes,
                             u.quarantined_slots,
                             u.digest_mismatches,
                             u.evicted_objects,
                             {}};
    for (const Budget::Usage& budget : store_->budget_usage())
      message.budgets.push_back({budget.used, budget.limit, budget.refused});
    const SegmentStore::DiskUsage disk = store_->disk_usage();
    message.budgets.push_back({disk.used_bytes, disk.capacity_bytes, disk.shed});
    return message;
  };
  auto now = LinkSocket::Clock::now();
  LinkConversation conversation(*pump_, options_.link, usage, now);
  std::vector<uint8_t> out, in(kReceiveBytes);
  size_t sent = 0;
  auto progress_at = now;
  bool journal_due = false;
  for (;;) {
    now = LinkSocket::Clock::now();
    const bool idle = sent == out.size();
    if (idle) {
      out.clear();
      sent = 0;
      progress_at = now;
    }
    conversation.fill(out, idle, journal_due, now);
    while (sent < out.size()) {
      const size_t n = socket.send_some(out.data() + sent, out.size() - sent);
      if (n == 0) break;
      sent += n;
      progress_at = now;
    }
    publish(conversation);
    const bool blocked = sent < out.size();
    if (blocked && now - progress_at >= options_.stall_timeout)
      throw LinkEnded("stalled", "the master takes nothing of what is sent");

    auto until = conversation.next_deadline();
    if (blocked) until = std::min(until, progress_at + options_.stall_timeout);
    const bool journal_wanted = !blocked && conversation.wants_journal();
    const int events = POLLIN | (blocked ? POLLOUT : 0);
    pollfd items[3] = {{socket.fd(), static_cast<short>(events), 0},
                       {stop_fd_, POLLIN, 0},
                       {journal_wanted ? store_->journal().fd() : -1, POLLIN, 0}};
    const int wait_ms = !blocked && conversation.has_inventory_to_send() ? 0 : poll_ms(until);
    if (::poll(items, 3, wait_ms) < 0 && errno != EINTR)
      throw LinkEnded("failed", std::string("poll: ") + std::strerror(errno));
    if (items[1].revents != 0) throw LinkEnded("stopped", "the link was told to end");
    journal_due = items[2].revents != 0;
    if ((items[0].revents & ~POLLOUT) != 0) {
      const size_t n = socket.receive_some(in.data(), in.size());
      if (n > 0) conversation.received(in.data(), n, LinkSocket::Clock::now());
    }
  }
}

}  // namespace kvstore
