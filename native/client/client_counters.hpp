// What a client counts. Monotonic, process-local, thread-safe (relaxed atomics). The names are stable: dashboards read them.
//
//   <call>_calls, <call>_keys        calls and entries (keys x shards), for <call> in get, put, exists, fetch, remove, keep
//   <call>_hits                      entries answered OK (put: OK or EXISTS)
//   <call>_misses                    entries the store does not have (put: entries not stored for lack of room)
//   <call>_failures                  entries answered otherwise: TIMEOUT, UNAVAILABLE, DIGEST_MISMATCH, CONFLICT, ...
//   <call>_bytes                     bytes of the hits, for get, put and fetch
//   put_exists                       of put_hits: entries that were there already
//   put_copies                       copies beyond the first that segments stored or had, of puts that want several
//   put_copies_short                 copies that such puts wanted and that are not there
//   put_conflicts                    entries whose key is taken by an object of another length
//   keep_refused                     entries that a segment has and does not keep as a put or keep asked: over its budget
//   keep_unsupported                 entries of puts and keeps whose intent a segment of an earlier release does not take
//   timeouts                         exchanges with a peer that ended at their deadline
//   connects                         connections opened (HELLO answered)
//   reconnects                       of them, such as replaced one that had failed
//   refused_hellos                   HELLOs refused: wrong token, version or peer; unix sockets that are somebody else's
//   protocol_errors                  replies that broke the protocol; their connections were closed
//   breaker_open                     times a peer's circuit breaker opened
//   breaker_refusals                 entries (requests to a master) kept from a peer by its open breaker
//   holders_silent                   entries whose holder was silent for so long that another one was asked within the same call
//   digest_mismatches                bytes received that do not have their digest; never served
//   generation_mismatches            same-host copies that lost the race with a change of their slot
//   suspects_confirmed               digest mismatches that the segment confirmed and quarantined
//   stale_namespace                  times a namespace was found to have a new epoch
//   map_refreshes                    segment maps fetched
//   locations_used                   entries sent straight to the segment where this client knew them to be
//   locations_stale                  locations found wrong: the segment does not have the page any more
//   locations_without_directory      of locations_used: answered OK in calls that no master served
//   exists_guessed                   pins confirmed by a PIN that went out beside the look-up
//   locates_refused                  entries that a segment on this host would not hold in its memory: they went by its socket
//   registrations_refused            pieces of memory that a segment on this host would not map: they go by its socket
//   transport_<t>_bytes_get, ..._put bytes moved, for <t> in the names of the transports; what else they count they declare themselves
//   internal_errors                  exceptions caught at the edge of a call (out of memory, ...)
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "client/peer_troubles.hpp"

namespace kvstore {

enum class Counter : uint8_t {
  kGetCalls,
  kGetKeys,
  kGetHits,
  kGetMisses,
  kGetFailures,
  kGetBytes,
  kPutCalls,
  kPutKeys,
  kPutHits,
  kPutMisses,
  kPutFailures,
  kPutBytes,
  kPutExists,
  kPutConflicts,
  kPutCopies,
  kPutCopiesShort,
  kExistsCalls,
  kExistsKeys,
  kExistsHits,
  kExistsMisses,
  kExistsFailures,
  kFetchCalls,
  kFetchKeys,
  kFetchHits,
  kFetchMisses,
  kFetchFailures,
  kFetchBytes,
  kRemoveCalls,
  kRemoveKeys,
  kRemoveHits,
  kRemoveMisses,
  kRemoveFailures,
  kKeepCalls,
  kKeepKeys,
  kKeepHits,
  kKeepMisses,
  kKeepFailures,
  kKeepRefused,
  kKeepUnsupported,
  kTimeouts,
  kConnects,
  kReconnects,
  kRefusedHellos,
  kProtocolErrors,
  kBreakerOpen,
  kBreakerRefusals,
  kHoldersSilent,
  kDigestMismatches,
  kGenerationMismatches,
  kSuspectsConfirmed,
  kStaleNamespace,
  kMapRefreshes,
  kLocationsUsed,
  kLocationsStale,
  kLocationsWithoutDirectory,
  kExistsGuessed,
  kLocatesRefused,
  kRegistrationsRefused,
  kInternalErrors,
  kCount
};

// What every verb counts of its calls.
struct CallCounters {
  Counter calls, keys, hits, misses, failures;
};
constexpr CallCounters kGetCounters{Counter::kGetCalls, Counter::kGetKeys, Counter::kGetHits,
                                    Counter::kGetMisses, Counter::kGetFailures};
constexpr CallCounters kPutCounters{Counter::kPutCalls, Counter::kPutKeys, Counter::kPutHits,
                                    Counter::kPutMisses, Counter::kPutFailures};
constexpr CallCounters kExistsCounters{Counter::kExistsCalls, Counter::kExistsKeys, Counter::kExistsHits,
                                       Counter::kExistsMisses, Counter::kExistsFailures};
constexpr CallCounters kFetchCounters{Counter::kFetchCalls, Counter::kFetchKeys, Counter::kFetchHits,
                                      Counter::kFetchMisses, Counter::kFetchFailures};
constexpr CallCounters kKeepCounters{Counter::kKeepCalls, Counter::kKeepKeys, Counter::kKeepHits,
                                     Counter::kKeepMisses, Counter::kKeepFailures};
constexpr CallCounters kRemoveCounters{Counter::kRemoveCalls, Counter::kRemoveKeys, Counter::kRemoveHits,
                                       Counter::kRemoveMisses, Counter::kRemoveFailures};

class Count {
 public:
  void add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// And what is wrong with its peers: whoever counts a failure knows whose it is.
class ClientCounters {
 public:
  PeerTroubles troubles;

  void add(Counter counter, uint64_t n = 1) { values_[static_cast<size_t>(counter)].add(n); }
  uint64_t value(Counter counter) const { return values_[static_cast<size_t>(counter)].value(); }

  // A call of `verb` that ended with these statuses, one byte an entry.
  void count(const CallCounters& verb, const uint8_t* statuses, size_t entry_count);

  // A counter that is declared by its name: the same one each time. As long-lived as this object.
  Count& named(const std::string& name);
  // Zero for a name that nobody declared.
  uint64_t value(const std::string& name) const;
  // All that there are, of both kinds.
  std::vector<std::pair<std::string, uint64_t>> all() const;

 private:
  static constexpr size_t kCount = static_cast<size_t>(Counter::kCount);
  std::array<Count, kCount> values_{};
  mutable Mutex mutex_;
  std::map<std::string, Count> named_ GUARDED_BY(mutex_);  // the counts themselves are not
};

// What a transport moved in one direction, "get" or "put".
std::string transport_bytes_counter(const char* transport, const char* direction);

}  // namespace kvstore
