#include "transports/ucx/core/worker.hpp"

#include <poll.h>

#include <algorithm>

#include "base/signals_blocked.hpp"

namespace kvstore {
namespace {

// Longer than an operation takes on a quiet fabric, short against a time slice.
constexpr auto kSpin = std::chrono::microseconds(20);
// While operations are in flight, a lost wake-up must cost no more than this.
constexpr int kSleepMsMax = 50;
constexpr int kProgressMax = 1000;  // events handled between two looks at the clock

}  // namespace

UcxWorker::UcxWorker(std::shared_ptr<UcxContext> context) : context_(std::move(context)) {
  const ucx::Api& api = context_->api();
  const SignalsBlocked blocked;
  ucx::WorkerParams params{};
  params.field_mask = ucx::WorkerParams::kThreadMode;
  params.thread_mode = ucx::WorkerParams::kSerialized;
  ucx::Status status = api.worker_create(context_->handle(), &params, &handle_);
  if (status != ucx::Status::kOk)
    throw UcxError("a UCX worker can't be made: " + context_->library().text(status));
  ucx::Address* address = nullptr;
  size_t size = 0;
  status = api.worker_get_efd(handle_, &event_fd_);
  if (status == ucx::Status::kOk) status = api.worker_get_address(handle_, &address, &size);
  if (status != ucx::Status::kOk) {
    api.worker_destroy(handle_);
    throw UcxError("a UCX worker can't be used: " + context_->library().text(status));
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(address);
  address_.assign(bytes, bytes + size);
  api.worker_release_address(handle_, address);
}

UcxWorker::~UcxWorker() {
  if (context_->in_own_process()) context_->api().worker_destroy(handle_);
}

bool UcxWorker::advance() {
  for (int i = 0; i < kProgressMax; ++i) {
    if (context_->api().worker_progress(handle_) != 0) continue;
    // Any failure but "busy" would fail again at once: sleep, as if it were armed.
    return context_->api().worker_arm(handle_) != ucx::Status::kBusy;
  }
  return false;
}

UcxWorker::Woken UcxWorker::work_until(const std::function<bool()>& done, Clock::time_point deadline,
                                       int socket, short events) {
  const auto spin_end = std::min(Clock::now() + kSpin, deadline);
  do {
    context_->api().worker_progress(handle_);
    if (done()) return Woken::kDone;
  } while (Clock::now() < spin_end);
  for (;;) {
    const bool idle = advance();
    if (done()) return Woken::kDone;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int sleep_ms = idle ? static_cast<int>(std::clamp<int64_t>(left + 1, 0, kSleepMsMax)) : 0;
    pollfd items[2] = {{event_fd_, POLLIN, 0}, {socket, events, 0}};
    ::poll(items, 2, sleep_ms);
    if (items[1].revents != 0) return Woken::kSocket;
    if (Clock::now() >= deadline) return Woken::kDeadline;
  }
}

}  // namespace kvstore
