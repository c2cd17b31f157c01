// A UCX worker: one thread's place to start and complete RDMA operations, and to serve what peers need of it.
//
// One thread at a time, also for all endpoints of the worker. Blocks on events and spins only briefly.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/socket_companion.hpp"
#include "transports/ucx/core/context.hpp"

namespace kvstore {

class UcxWorker : public SocketCompanion {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Woken { kDone, kSocket, kDeadline };

  // Throws UcxError.
  explicit UcxWorker(std::shared_ptr<UcxContext> context);
  ~UcxWorker() override;
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  bool advance() override;
  int event_fd() const override { return event_fd_; }

  // Works until done() or the deadline, or until `events` (of poll) show on `socket`, where that is not -1.
  Woken work_until(const std::function<bool()>& done, Clock::time_point deadline, int socket = -1,
                   short events = 0);

  const std::shared_ptr<UcxContext>& context() const { return context_; }
  ucx::Worker* handle() const { return handle_; }
  // What a peer needs to reach it.
  const std::vector<uint8_t>& address() const { return address_; }

 private:
  const std::shared_ptr<UcxContext> context_;
  ucx::Worker* handle_ = nullptr;
  int event_fd_ = -1;
  std::vector<uint8_t> address_;
};

}  // namespace kvstore
