// The segments as peers of this client: one circuit breaker and one chosen transport each, kept in step with the map.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "client/circuit_breaker.hpp"
#include "client/peer_pace.hpp"
#include "client/segment_map.hpp"
#include "client/transport.hpp"

namespace kvstore {

struct BreakerOptions {
  int64_t backoff_ms_min = 50;
  int64_t backoff_ms_max = 1000;
};

// How long a probe of a peer that failed may go without any progress.
constexpr int kProbeStallMs = 250;
// How long gets that can go elsewhere leave one alone that was silent.
constexpr int64_t kSilentBackoffMs = 1000;
// How long puts avoid a segment that had no room.
constexpr int64_t kNoSpaceBackoffMs = 500;

class SegmentPeer {
 public:
  SegmentPeer(SegmentRecord record, TransportContext& context, const TransportSet& transports,
              const BreakerOptions& breaker, uint64_t seed);

  // Sets the status of every entry. While the breaker is open that takes no time.
  void submit(TransportBatch& batch, const Deadline& deadline);

  SegmentRecord record() const;
  // State and usage of a newer map, for the same peer.
  void update(const SegmentRecord& record);

  // Whether a batch submitted now would get to the peer at all.
  bool usable() const { return !breaker_.refusing(Deadline::Clock::now()); }
  // It has failed, or been silent for longer than a call would wait that could go elsewhere, and has not answered since.
  bool troubled() const { return !breaker_.closed() || silent_.load(std::memory_order_relaxed); }
  // That was just now: whoever can go elsewhere does.
  bool to_be_spared() const;
  // How fast gets are served, lower is faster; 0: unknown.
  uint64_t us_per_mib() const { return pace_.us_per_mib(Deadline::Clock::now()); }
  void note_no_space();
  // It has left the map: what was wrong with it is nobody's concern.
  void forget() const;
  bool takes_puts() const;
  bool readable() const;
  uint64_t capacity_bytes() const;
  // What the last map said is free.
  uint64_t room_bytes() const;
  bool same_host() const { return same_host_.load(std::memory_order_relaxed); }
  const char* transport_name() const;

 private:
  // The transport, opened when there is none; one caller opens it while others wait.
  NetStatus transport(const Deadline& deadline, std::shared_ptr<Transport>* out);
  std::shared_ptr<Transport> shared(std::unique_ptr<Transport> transport);
  std::string subject() const;
  void works() const;
  void drop_transport(const std::shared_ptr<Transport>& failed);

  TransportContext& context_;
  const TransportSet& transports_;
  CircuitBreaker breaker_;
  PeerPace pace_;
  mutable Mutex mutex_;
  CondVar opened_;
  SegmentRecord record_ GUARDED_BY(mutex_);
  std::shared_ptr<Transport> transport_ GUARDED_BY(mutex_);
  bool opening_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> same_host_{false};
  std::atomic<int64_t> no_puts_until_us_{0};
  std::atomic<bool> silent_{false};
  std::atomic<int64_t> spared_until_us_{0};
};

class SegmentPeers {
 public:
  SegmentPeers(TransportContext& context, const TransportSet& transports, BreakerOptions breaker)
      : context_(context), transports_(transports), breaker_(breaker) {}

  // Follows a new map: unchanged peers stay, changed and vanished ones are let go (calls in flight on them finish).
  void follow(const SegmentMap& map);
  // Null for an index that the map does not have.
  std::shared_ptr<SegmentPeer> find(uint32_t index) const;
  std::vector<std::pair<uint32_t, std::shared_ptr<SegmentPeer>>> all() const;
  // Those that a call would not get through to now, at most `count_max` of them.
  std::vector<uint32_t> unusable(size_t count_max) const;
  void clear();

 private:
  TransportContext& context_;
  const TransportSet& transports_;
  const BreakerOptions breaker_;
  mutable Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<SegmentPeer>> peers_ GUARDED_BY(mutex_);
};

}  // namespace kvstore
