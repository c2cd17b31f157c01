#include "segment/copying/object_copier.hpp"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>

#include "client/connection/tcp_connect.hpp"
#include "segment/copying/copy_run.hpp"

namespace kvstore {
namespace {

using wire::Status;

constexpr int kConnectMs = 1000;
// A peer that sends nothing for so long is left; what it did not send is ordered again.
constexpr int kStallMs = 5000;
constexpr auto kLook = std::chrono::milliseconds(20);

// Looks at the flag while it waits for the network.
class OrderCancellation final : public Cancellation {
 public:
  explicit OrderCancellation(const std::atomic<bool>& cancelled)
      : Cancellation(true), cancelled_(cancelled) {}

 protected:
  bool look() noexcept override { return cancelled_.load(); }

 private:
  const std::atomic<bool>& cancelled_;
};

const char* name_of(NetStatus status) {
  switch (status) {
    case NetStatus::kOk:
      return "";
    case NetStatus::kTimeout:
      return "it did not answer in time";
    case NetStatus::kUnreachable:
      return "it can't be reached";
    case NetStatus::kClosed:
      return "it closed the connection";
    case NetStatus::kProtocol:
      return "it said what it must not";
    case NetStatus::kRefused:
      return "it refused the connection: another pool, or another token";
    case NetStatus::kUnresolved:
      return "its name has no address";
  }
  return "it failed";
}

}  // namespace

ObjectCopier::ObjectCopier(std::shared_ptr<SegmentStore> store, std::string token)
    : store_(std::move(store)), hello_{std::move(token), "segment that copies"} {}

NetStatus ObjectCopier::connect(const CopyOrder& order, const Deadline& deadline,
                                std::unique_ptr<FrameConnection>* connection) const {
  // A path of the same name on another host leads to another pool, or nowhere.
  const bool is_here = !order.unix_path.empty() && ::access(order.unix_path.c_str(), W_OK) == 0;
  NetStatus status = NetStatus::kUnreachable;
  for (const bool by_path : {true, false}) {
    if (by_path ? !is_here : order.port == 0) continue;
    const Deadline in_time = deadline.within_ms(kConnectMs);
    ClientSocket socket;
    status = by_path ? ClientSocket::connect_unix(order.unix_path, in_time, &socket)
                     : connect_tcp(order.host, order.port, in_time, &socket);
    if (status != NetStatus::kOk) continue;
    auto made = std::make_unique<FrameConnection>(std::move(socket));
    status = made->hello(hello_, order.pool_id, in_time);
    if (status != NetStatus::kOk) continue;
    *connection = std::move(made);
    break;
  }
  return status;
}

bool ObjectCopier::wait_turn(const Deadline& deadline) {
  for (;;) {
    Clock::time_point next;
    {
      const MutexLock lock(mutex_);
      next = next_run_;
    }
    const auto now = Clock::now();
    if (now >= next) return true;
    Cancellation::look_now_and_then();
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::min<Clock::duration>(next - now, kLook));
  }
}

void ObjectCopier::took(uint64_t bytes, uint64_t bytes_per_s) {
  if (bytes_per_s == 0) return;
  const auto cost = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(bytes_per_s)));
  const MutexLock lock(mutex_);
  next_run_ = std::max(next_run_, Clock::now()) + cost;
}

void ObjectCopier::cancel(std::atomic<bool>& cancelled) {
  cancelled.store(true);
  store_->interrupt();
}

CopyOutcome ObjectCopier::copy(const CopyOrder& order, const std::atomic<bool>& cancelled) {
  const size_t n = order.fingerprints.size();
  if (n > wire::kFetchEntriesMax)
    throw std::invalid_argument("an order has at most " + std::to_string(wire::kFetchEntriesMax) +
                                " objects, not " + std::to_string(n));
  if (order.pool_id == PeerId{})
    throw std::invalid_argument("an order names the pool that it is to be copied from");
  OrderCancellation cancellation(cancelled);
  const auto timeout =
      std::clamp<std::chrono::milliseconds>(order.timeout, std::chrono::milliseconds(1), kTimeoutMax);
  const Deadline deadline = Deadline::after_ms(timeout.count()).of(cancellation).with_stall_ms(kStallMs);

  CopyOutcome outcome;
  uint64_t seq = 0;
  std::tie(outcome.statuses, seq) = store_->have(order.ns, order.fingerprints);
  std::vector<uint32_t> wanted;
  for (uint32_t i = 0; i < n; ++i)
    if (outcome.statuses[i] == static_cast<uint8_t>(Status::kMiss)) wanted.push_back(i);

  std::unique_ptr<FrameConnection> connection;
  NetStatus status = NetStatus::kOk;
  if (!wanted.empty()) status = connect(order, deadline, &connection);
  if (connection != nullptr && (connection->features() & wire::kFeatureFetch) == 0) {
    outcome.trouble = "it is of a release that hands nothing to other segments";
    connection.reset();
  }
  PutBatch batch(*store_);
  while (connection != nullptr && !wanted.empty() && status == NetStatus::kOk) {
    if (!wait_turn(deadline)) {
      status = NetStatus::kTimeout;
      break;
    }
    const std::vector<uint32_t> asked(wanted.begin(),
                                      wanted.begin() + std::min<size_t>(wanted.size(), kRunObjects));
    batch.begin_put();
    CopyRun run(*store_, batch, order, cancelled);
    status = run.run(*connection, asked, deadline, outcome);
    batch.end_put(run.seq());
    seq = std::max(seq, run.seq());
    took(run.bytes(), order.bytes_per_s);
    if (status == NetStatus::kOk && run.left().size() == asked.size()) status = NetStatus::kProtocol;
    if (status != NetStatus::kOk) break;
    std::vector<uint32_t> rest(run.left());
    rest.insert(rest.end(), wanted.begin() + asked.size(), wanted.end());
    wanted = std::move(rest);
    const bool full = !order.may_evict && std::any_of(asked.begin(), asked.end(), [&](uint32_t i) {
      return outcome.statuses[i] == static_cast<uint8_t>(Status::kNoSpace);
    });
    if (!full) continue;
    // Nothing gets free by itself: what follows is not even asked for.
    for (const uint32_t i : std::exchange(wanted, {}))
      outcome.statuses[i] = static_cast<uint8_t>(Status::kNoSpace);
  }
  batch.end();
  // Those that were asked for on a connection that failed, and those that were not got to.
  for (const uint32_t i : wanted)
    if (outcome.statuses[i] == static_cast<uint8_t>(Status::kMiss))
      outcome.statuses[i] = static_cast<uint8_t>(Status::kUnavailable);
  if (status != NetStatus::kOk && outcome.trouble.empty())
    outcome.trouble = cancelled.load() ? "it was cancelled" : name_of(status);
  if (seq > 0 && !store_->journal().wait_acked(seq, Clock::now() + kCommitWait, cancelled)) {
    for (uint8_t& each : outcome.statuses)
      if (each == static_cast<uint8_t>(Status::kOk) || each == static_cast<uint8_t>(Status::kExists))
        each = static_cast<uint8_t>(Status::kNotCommitted);
    store_->count_not_committed();
  }
  return outcome;
}

}  // namespace kvstore
