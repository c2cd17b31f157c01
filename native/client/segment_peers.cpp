#include "client/segment_peers.hpp"

#include <algorithm>

#include "client/connection/connection_pool.hpp"

namespace kvstore {
namespace {

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Deadline::Clock::now().time_since_epoch())
      .count();
}

}  // namespace

SegmentPeer::SegmentPeer(SegmentRecord record, TransportContext& context, const TransportSet& transports,
                         const BreakerOptions& breaker, uint64_t seed)
    : context_(context),
      transports_(transports),
      breaker_(breaker.backoff_ms_min, breaker.backoff_ms_max, seed),
      record_(std::move(record)) {
  // A guess until a transport is chosen, so that the first put already prefers the segment of its own host.
  same_host_ = transports_.near(record_);
}

SegmentRecord SegmentPeer::record() const {
  const MutexLock lock(mutex_);
  return record_;
}

void SegmentPeer::update(const SegmentRecord& record) {
  const MutexLock lock(mutex_);
  record_ = record;
}

std::string SegmentPeer::subject() const {
  const MutexLock lock(mutex_);
  return peer_subject({record_.host, record_.tcp_port, ""}, true);
}

void SegmentPeer::works() const {
  PeerTroubles& troubles = context_.counters.troubles;
  if (troubles.none()) return;
  const SegmentRecord record = this->record();
  troubles.works(peer_subject({record.host, record.tcp_port, ""}, true));
  if (same_host() && !record.unix_path.empty()) troubles.works(peer_subject({"", 0, record.unix_path}, true));
}

void SegmentPeer::forget() const {
  PeerTroubles& troubles = context_.counters.troubles;
  if (troubles.none()) return;
  const SegmentRecord record = this->record();
  troubles.works(peer_subject({record.host, record.tcp_port, ""}, true));
  troubles.works(peer_subject({"", 0, record.unix_path}, true));
}

void SegmentPeer::note_no_space() {
  no_puts_until_us_.store(now_us() + kNoSpaceBackoffMs * 1000, std::memory_order_relaxed);
}

bool SegmentPeer::to_be_spared() const {
  return !breaker_.closed() || now_us() < spared_until_us_.load(std::memory_order_relaxed);
}

bool SegmentPeer::readable() const {
  const MutexLock lock(mutex_);
  return record_.readable();
}

uint64_t SegmentPeer::capacity_bytes() const {
  const MutexLock lock(mutex_);
  return record_.capacity_bytes;
}

uint64_t SegmentPeer::room_bytes() const {
  const MutexLock lock(mutex_);
  return record_.capacity_bytes - std::min(record_.used_bytes, record_.capacity_bytes);
}

bool SegmentPeer::takes_puts() const {
  if (!usable() || now_us() < no_puts_until_us_.load(std::memory_order_relaxed)) return false;
  const MutexLock lock(mutex_);
  return record_.writable();
}

const char* SegmentPeer::transport_name() const {
  const MutexLock lock(mutex_);
  return transport_ == nullptr ? "" : transport_->name();
}

// Taking a transport apart unmaps a pool, joins a thread, closes connections: whoever lets go of it last must not wait for that.
std::shared_ptr<Transport> SegmentPeer::shared(std::unique_ptr<Transport> transport) {
  if (transport == nullptr) return nullptr;
  WorkerPool& workers = context_.workers;
  return std::shared_ptr<Transport>(transport.release(), [&workers](Transport* last) {
    try {
      workers.post([last] { delete last; });
    } catch (...) {  // out of memory for the task: late is better than leaked
      delete last;
    }
  });
}

NetStatus SegmentPeer::transport(const Deadline& deadline, std::shared_ptr<Transport>* out) {
  const Deadline::Wait waiting(deadline);
  MutexLock lock(mutex_);
  while (opening_) {
    opened_.wait_until(mutex_, waiting.slice_end());
    if (!opening_) break;
    lock.unlock();
    const bool over = waiting.over();
    lock.lock();
    if (over && opening_) return NetStatus::kTimeout;
  }
  if (transport_ == nullptr) {
    opening_ = true;
    const SegmentRecord record = record_;
    lock.unlock();
    NetStatus why = NetStatus::kUnreachable;
    std::shared_ptr<Transport> fresh;
    try {
      fresh = shared(transports_.open(record, deadline.within_ms(2 * context_.connect_timeout_ms), &why));
    } catch (...) {
      fresh = nullptr;
    }
    lock.lock();
    opening_ = false;
    opened_.notify_all();
    if (fresh == nullptr) return why;
    transport_ = std::move(fresh);
    same_host_.store(transport_->same_host(), std::memory_order_relaxed);
  }
  *out = transport_;
  return NetStatus::kOk;
}

void SegmentPeer::drop_transport(const std::shared_ptr<Transport>& failed) {
  const MutexLock lock(mutex_);
  // The next call chooses anew: a segment that restarted may offer other transports.
  if (transport_ == failed) transport_ = nullptr;
}

void SegmentPeer::submit(TransportBatch& batch, const Deadline& call_deadline) {
  const auto began = Deadline::Clock::now();
  const CircuitBreaker::Ticket ticket = breaker_.admit(began);
  if (ticket.verdict == CircuitBreaker::Verdict::kRefused) {
    batch.set_all(wire::Status::kUnavailable);
    context_.counters.add(Counter::kBreakerRefusals, batch.entries.size());
    return;
  }
  const Deadline deadline = ticket.verdict == CircuitBreaker::Verdict::kProbe
                                ? call_deadline.with_stall_ms(kProbeStallMs)
                                : call_deadline;
  std::shared_ptr<Transport> used;
  NetStatus status = NetStatus::kClosed;
  try {
    status = transport(deadline, &used);
    if (used == nullptr)
      batch.set_all(entry_status(status));
    else
      status = used->submit(batch, deadline);
  } catch (
      ...) {  // out of memory: nothing was learned about the peer, and every entry has the status it last got
    batch.set_all(wire::Status::kUnavailable);
    context_.counters.add(Counter::kInternalErrors);
    breaker_.cancel(ticket, Deadline::Clock::now());
    return;
  }
  if (status == NetStatus::kOk) {
    breaker_.success(ticket);
    silent_.store(false, std::memory_order_relaxed);
    spared_until_us_.store(0, std::memory_order_relaxed);
    if (batch.kind == BatchKind::kGet) {
      uint64_t bytes = 0;
      for (const uint32_t entry : batch.entries)
        if (batch.status(entry) == wire::Status::kOk) bytes += batch.memory->entry_bytes(entry);
      const auto now = Deadline::Clock::now();
      if (bytes > 0) pace_.served(bytes, now - began, now);
    }
    works();
    return;
  }
  if (status == NetStatus::kTimeout && call_deadline.may_stall_out() && !call_deadline.expired()) {
    // Too slow for a call that goes elsewhere now: others may have nowhere to go, and decide for themselves.
    silent_.store(true, std::memory_order_relaxed);
    spared_until_us_.store(now_us() + kSilentBackoffMs * 1000, std::memory_order_relaxed);
    context_.counters.add(Counter::kHoldersSilent, batch.entries.size());
    breaker_.cancel(ticket, Deadline::Clock::now());
    return;
  }
  if (tells_of_peer(status, deadline, began)) context_.counters.troubles.failed_somehow(subject(), status);
  if (status == NetStatus::kTimeout) context_.counters.add(Counter::kTimeouts);
  if (status == NetStatus::kProtocol) context_.counters.add(Counter::kProtocolErrors);
  const auto now = Deadline::Clock::now();
  // A call that carries more than fits into its time ends while its bytes still come: that peer works.
  const bool slow = status == NetStatus::kTimeout && deadline.moves();
  if (deadline.cancelled() || slow)
    breaker_.cancel(ticket, now);
  else if (status == NetStatus::kTimeout ? breaker_.timeout(ticket, began, now)
                                         : breaker_.failure(ticket, now))
    context_.counters.add(Counter::kBreakerOpen);
  // A hung peer will be the same one when it goes on; one that is gone may come back as another.
  if (used != nullptr && status != NetStatus::kTimeout) drop_transport(used);
}

void SegmentPeers::follow(const SegmentMap& map) {
  std::map<uint32_t, std::shared_ptr<SegmentPeer>> old;  // destroyed after the lock is gone
  const MutexLock lock(mutex_);
  old.swap(peers_);
  for (const SegmentRecord& segment : map.segments) {
    const auto known = old.find(segment.index);
    if (known != old.end() && known->second->record().same_peer(segment)) {
      known->second->update(segment);
      peers_.emplace(segment.index, known->second);
    } else if (segment.state != wire::SegmentState::kGone) {
      peers_.emplace(segment.index, std::make_shared<SegmentPeer>(
                                        segment, context_, transports_, breaker_,
                                        uint64_t{segment.index} * 7919 + static_cast<uint64_t>(now_us())));
    }
  }
  for (const auto& [index, peer] : old)
    if (const auto at = peers_.find(index); at == peers_.end() || at->second != peer) peer->forget();
}

std::shared_ptr<SegmentPeer> SegmentPeers::find(uint32_t index) const {
  const MutexLock lock(mutex_);
  const auto at = peers_.find(index);
  return at == peers_.end() ? nullptr : at->second;
}

std::vector<std::pair<uint32_t, std::shared_ptr<SegmentPeer>>> SegmentPeers::all() const {
  const MutexLock lock(mutex_);
  return {peers_.begin(), peers_.end()};
}

std::vector<uint32_t> SegmentPeers::unusable(size_t count_max) const {
  const MutexLock lock(mutex_);
  std::vector<uint32_t> indexes;
  for (const auto& [index, peer] : peers_)
    if (indexes.size() < count_max && !peer->usable()) indexes.push_back(index);
  return indexes;
}

void SegmentPeers::clear() {
  std::map<uint32_t, std::shared_ptr<SegmentPeer>> old;
  const MutexLock lock(mutex_);
  old.swap(peers_);
}

}  // namespace kvstore
