#include "master/commit_thread.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.hpp"
#include "base/signals_blocked.hpp"

namespace kvstore {
namespace {

// A full log is told after this: whoever commits tries again, and says meanwhile what it waits for.
constexpr auto kRoomTimeout = std::chrono::seconds(1);
// Of one write: more than this at a time gains nothing, and would have to fit into a file.
constexpr uint64_t kGroupBytesMax = 2u << 20;

}  // namespace

struct CommitThread::Shared {
  struct Submitted {
    uint64_t ticket;
    std::vector<std::string> payloads;
  };

  explicit Shared(std::unique_ptr<CommitLog> log_in, uint64_t released_in)
      : log(std::move(log_in)), wake_fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), released(released_in) {
    if (wake_fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~Shared() { ::close(wake_fd); }

  void run();
  bool next_group(std::vector<uint64_t>& tickets, std::vector<size_t>& counts,
                  std::vector<std::string>& payloads);
  Outcome append(const std::vector<std::string>& payloads);
  bool prepare(uint64_t until) noexcept;

  // The thread's alone.
  std::unique_ptr<CommitLog> log;
  bool files_wanted = true;

  const int wake_fd;
  Mutex mutex;
  CondVar changed;
  std::vector<Submitted> queue GUARDED_BY(mutex);
  std::vector<Outcome> finished GUARDED_BY(mutex);
  uint64_t released GUARDED_BY(mutex);
  bool stopping GUARDED_BY(mutex) = false;
  bool ended GUARDED_BY(mutex) = false;
};

void CommitThread::Shared::run() {
  std::vector<uint64_t> tickets;
  std::vector<size_t> counts;
  std::vector<std::string> payloads;
  while (next_group(tickets, counts, payloads)) {
    const Outcome outcome = append(payloads);
    uint64_t sequence = outcome.first_sequence;
    {
      const MutexLock lock(mutex);
      for (size_t i = 0; i < tickets.size(); ++i) {
        finished.push_back({tickets[i], sequence, outcome.error, outcome.text});
        if (sequence != 0) sequence += counts[i];
      }
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd, &one, sizeof one);
  }
  log.reset();  // lets go of the directory
  const MutexLock lock(mutex);
  ended = true;
  changed.notify_all();
}

bool CommitThread::Shared::next_group(std::vector<uint64_t>& tickets, std::vector<size_t>& counts,
                                      std::vector<std::string>& payloads) {
  tickets.clear();
  counts.clear();
  payloads.clear();
  MutexLock lock(mutex);
  while (queue.empty()) {
    if (stopping) return false;
    if (files_wanted) {
      const uint64_t until = released;
      lock.unlock();
      files_wanted = prepare(until);
      lock.lock();
    } else {
      changed.wait(mutex);
    }
  }
  uint64_t bytes = 0;
  size_t taken = 0;
  for (Submitted& each : queue) {
    uint64_t more = 0;
    for (const std::string& payload : each.payloads) more += payload.size();
    if (taken > 0 && bytes + more > kGroupBytesMax) break;
    bytes += more;
    tickets.push_back(each.ticket);
    counts.push_back(each.payloads.size());
    for (std::string& payload : each.payloads) payloads.push_back(std::move(payload));
    ++taken;
  }
  queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(taken));
  return true;
}

CommitThread::Outcome CommitThread::Shared::append(const std::vector<std::string>& payloads) {
  const auto give_up_at = std::chrono::steady_clock::now() + kRoomTimeout;
  for (;;) {
    uint64_t until;
    {
      const MutexLock lock(mutex);
      until = released;
    }
    try {
      return {0, log->append(payloads, until), 0, ""};
    } catch (const LogFull& error) {
      const MutexLock lock(mutex);
      while (released == until && !stopping)
        if (changed.wait_until(mutex, give_up_at) == std::cv_status::timeout)
          return {0, 0, ENOSPC, error.what()};
      if (released == until) return {0, 0, ENOSPC, error.what()};
    } catch (const std::system_error& error) {
      files_wanted = true;  // one may have failed
      return {0, 0, error.code().value(), error.what()};
    } catch (const std::exception& error) {  // memory
      return {0, 0, ENOMEM, error.what()};
    }
  }
}

bool CommitThread::Shared::prepare(uint64_t until) noexcept {
  try {
    return log->prepare(until);
  } catch (const std::exception&) {
    return false;  // whoever needs the file is told
  }
}

CommitThread::CommitThread(std::unique_ptr<CommitLog> log, uint64_t released)
    : shared_(std::make_shared<Shared>(std::move(log), released)) {
  const SignalsBlocked blocked;  // signals are for the threads of Python
  std::thread([shared = shared_] { shared->run(); }).detach();
}

CommitThread::~CommitThread() { stop(0); }

int CommitThread::fd() const { return shared_->wake_fd; }

void CommitThread::submit(uint64_t ticket, std::vector<std::string> payloads) {
  const MutexLock lock(shared_->mutex);
  shared_->queue.push_back({ticket, std::move(payloads)});
  shared_->changed.notify_all();
}

std::vector<CommitThread::Outcome> CommitThread::take_finished() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(shared_->wake_fd, &count, sizeof count);
  const MutexLock lock(shared_->mutex);
  return std::exchange(shared_->finished, {});
}

void CommitThread::release(uint64_t sequence) {
  const MutexLock lock(shared_->mutex);
  shared_->released = sequence;
  shared_->changed.notify_all();
}

bool CommitThread::stop(uint32_t timeout_ms) {
  const MutexLock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!shared_->ended)
    if (shared_->changed.wait_until(shared_->mutex, end) == std::cv_status::timeout) return shared_->ended;
  return true;
}

}  // namespace kvstore
