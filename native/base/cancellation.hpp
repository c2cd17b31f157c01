// Ends a call before its deadline: because the thread that made it has to do something else (a signal handler raised an
// exception), or because the process exits. A cancelled call ends as one does whose deadline has passed: it closes the connections
// that something may still come on, and writes into nobody's memory any more.
#pragma once

#include <atomic>
#include <chrono>

namespace kvstore {

// One call, on the stack of the thread that makes it. Calls nest.
class Cancellation {
 public:
  using Clock = std::chrono::steady_clock;
  // How long a wait goes on before it finds out.
  static constexpr auto kSlice = std::chrono::milliseconds(50);

  // `looks`: the thread calls look() while it waits.
  explicit Cancellation(bool looks) noexcept;
  virtual ~Cancellation();
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // From any thread that works for the call.
  bool is_cancelled() const noexcept {
    return cancelled_.load(std::memory_order_relaxed) ||
           (ending_.load(std::memory_order_relaxed) && !outlives_the_end_);
  }

  // Ends it, as something that it found out would. From any thread while it lasts.
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }

  // The call that this thread is making; null on helper threads and outside of calls.
  static Cancellation* current() noexcept;
  // Where this thread makes a call and it is time: finds out whether the call has to end. Hold no lock.
  static void look_now_and_then() noexcept;

  // For the exit of the process, whose memory is about to be taken apart: ends the calls of all other threads, those to come
  // included, and waits for them, not longer than the timeout. True when none is left.
  static bool end_other_threads_calls(std::chrono::milliseconds timeout) noexcept;

 protected:
  // True: the call has to end. Not called again then.
  virtual bool look() noexcept { return false; }

 private:
  static std::atomic<bool> ending_;

  std::atomic<bool> cancelled_{false};
  const bool looks_;
  const bool outlives_the_end_;
  Cancellation* const outer_;
  Clock::time_point next_look_;
};

}  // namespace kvstore
