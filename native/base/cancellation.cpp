#include "base/cancellation.hpp"

#include <thread>

#include "base/process_owner.hpp"

namespace kvstore {
namespace {

thread_local Cancellation* innermost = nullptr;
thread_local bool ends_the_process = false;

// Calls under way in this process: a child has none of its parent's.
struct Running {
  std::atomic<uint64_t> generation{0};
  std::atomic<int64_t> calls{0};
};
Running running;

std::atomic<int64_t>& calls_here() noexcept {
  if (running.generation.exchange(fork_generation(), std::memory_order_relaxed) != fork_generation())
    running.calls.store(0);
  return running.calls;
}

}  // namespace

std::atomic<bool> Cancellation::ending_{false};

Cancellation::Cancellation(bool looks) noexcept
    : looks_(looks),
      outlives_the_end_(ends_the_process),
      outer_(innermost),
      next_look_(Clock::now() + kSlice) {
  innermost = this;
  calls_here().fetch_add(1, std::memory_order_relaxed);
}

Cancellation::~Cancellation() {
  innermost = outer_;
  calls_here().fetch_sub(1, std::memory_order_release);
}

Cancellation* Cancellation::current() noexcept { return innermost; }

void Cancellation::look_now_and_then() noexcept {
  Cancellation* const call = innermost;
  if (call == nullptr || !call->looks_ || call->is_cancelled() || Clock::now() < call->next_look_) return;
  if (call->look()) call->cancel();
  call->next_look_ = Clock::now() + kSlice;
}

bool Cancellation::end_other_threads_calls(std::chrono::milliseconds timeout) noexcept {
  ends_the_process = true;
  ending_.store(true);
  const auto deadline = Clock::now() + timeout;
  while (calls_here().load(std::memory_order_acquire) > 0 && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return calls_here().load() <= 0;
}

}  // namespace kvstore
