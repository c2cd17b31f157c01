// exists, get, fetch.
#include <algorithm>
#include <array>

#include "client/page_client_internal.hpp"

namespace kvstore {
namespace {

using wire::Status;

constexpr CallCounters kExistsCounters{Counter::kExistsCalls, Counter::kExistsKeys, Counter::kExistsHits,
                                       Counter::kExistsMisses, Counter::kExistsFailures};
constexpr CallCounters kGetCounters{Counter::kGetCalls, Counter::kGetKeys, Counter::kGetHits,
                                    Counter::kGetMisses, Counter::kGetFailures};
constexpr CallCounters kFetchCounters{Counter::kFetchCalls, Counter::kFetchKeys, Counter::kFetchHits,
                                      Counter::kFetchMisses, Counter::kFetchFailures};

// How long a report of a bad digest may take: it must not cost the caller what is left of the deadline.
constexpr int64_t kSuspectMs = 50;

// The segments an entry was asked at in this call.
struct Tried {
  std::array<uint32_t, 2 * kReplicasTried> segments{wire::kNoSegment, wire::kNoSegment, wire::kNoSegment,
                                                    wire::kNoSegment};
  uint8_t count = 0;
  bool has(uint32_t segment) const {
    return std::find(segments.begin(), segments.begin() + count, segment) != segments.begin() + count;
  }
  void add(uint32_t segment) {
    if (count < segments.size()) segments[count++] = segment;
  }
};

// The first replica not tried yet that a batch would get to, or kNoSegment.
class ReplicaChoice {
 public:
  ReplicaChoice(const SegmentPeers& peers, ClientCounters& counters) : peers_(peers), counters_(counters) {}

  uint32_t operator()(const ObjectLocation& where, const Tried& tried) {
    for (const uint32_t segment : where.segments) {
      if (segment == wire::kNoSegment || tried.has(segment)) continue;
      const Answers answers = answers_of(segment);
      if (answers == Answers::kYes) return segment;
      if (answers == Answers::kRefusing) counters_.add(Counter::kBreakerRefusals);
    }
    return wire::kNoSegment;
  }

 private:
  enum class Answers : uint8_t { kNo, kRefusing, kYes };
  // Asked once a segment and round: a batch has many entries and few segments.
  Answers answers_of(uint32_t segment) {
    const auto [at, fresh] = known_.emplace(segment, Answers::kNo);
    if (fresh) {
      const auto peer = peers_.find(segment);
      if (peer != nullptr && peer->readable())
        at->second = peer->usable() ? Answers::kYes : Answers::kRefusing;
    }
    return at->second;
  }
  const SegmentPeers& peers_;
  ClientCounters& counters_;
  std::map<uint32_t, Answers> known_;
};

bool any_stale(const std::vector<uint32_t>& entries, const uint8_t* statuses) {
  return std::any_of(entries.begin(), entries.end(), [&](uint32_t entry) {
    return statuses[entry] == static_cast<uint8_t>(Status::kStaleNamespace);
  });
}

}  // namespace

void PageClient::exists(int handle, const KeyBlock& keys, uint32_t pin_ms, const Deadline& deadline,
                        uint8_t* statuses) {
  Call call{keys, deadline, statuses};
  call.set_all(Status::kUnavailable);
  const CallGuard guard(*this);
  if (guard.core() == nullptr) return;
  Core& core = *guard.core();
  in_namespace(core, handle, call, [&] {
    if (pin_ms > 0) return exists_pinned(core, call, pin_ms);
    std::vector<uint8_t> found;
    const Status status = core.directory.exists(call.keys.ns, call.fingerprints, deadline, &found);
    if (status == Status::kStaleNamespace) return false;
    for (uint32_t i = 0; i < keys.entry_count(); ++i)
      call.set(i, status != Status::kOk ? status : found[i] != 0 ? Status::kOk : Status::kMiss);
    return true;
  });
  count_call(counters_, kExistsCounters, statuses, keys.entry_count());
}

bool PageClient::exists_pinned(Core& core, Call& call, uint32_t pin_ms) {
  const std::vector<uint32_t> all = call.all_entries();
  std::vector<ObjectLocation> where(all.size());
  const Status status = look_up(core, call, all, &where);
  if (status == Status::kStaleNamespace) return false;
  if (status != Status::kOk) {
    call.set_all(status);
    return true;
  }
  std::vector<Tried> tried(all.size());
  std::vector<uint32_t> pending;
  for (const uint32_t entry : all) {
    call.set(entry, where[entry].known() ? Status::kUnavailable : Status::kMiss);
    if (where[entry].known()) pending.push_back(entry);
  }
  TransportBatch pin;
  pin.kind = BatchKind::kPin;
  pin.pin_ms = pin_ms;
  while (!pending.empty() && !call.deadline.expired()) {
    Groups groups;
    ReplicaChoice choose(core.peers, counters_);
    for (const uint32_t entry : pending) {
      const uint32_t segment = choose(where[entry], tried[entry]);
      if (segment == wire::kNoSegment) continue;
      groups[segment].push_back(entry);
      tried[entry].add(segment);
    }
    if (groups.empty()) break;
    submit(core, call, groups, pin);
    pending.clear();
    for (const auto& [segment, entries] : groups)
      for (const uint32_t entry : entries) {
        if (call.status(entry) != Status::kOk) {
          pending.push_back(entry);
        } else if (where[entry].segments[0] != segment) {
          std::swap(where[entry].segments[0], where[entry].segments[1]);  // a get goes to where the pin is
        }
      }
    if (any_stale(pending, call.statuses)) return false;
    std::sort(pending.begin(), pending.end());
  }
  std::vector<uint32_t> confirmed, gone;
  for (const uint32_t entry : all) (call.status(entry) == Status::kOk ? confirmed : gone).push_back(entry);
  const auto now = Deadline::Clock::now();
  const auto ttl = std::chrono::milliseconds(std::min<int64_t>(pin_ms, kLocationTtlMs));
  core.locations.store(call.fingerprints, confirmed, where, now, now + ttl);
  core.locations.forget(call.fingerprints, gone);
  return true;
}

void PageClient::get(int handle, const KeyBlock& keys, const Pieces& memory, const Deadline& deadline,
                     uint8_t* statuses) {
  Call call{keys, deadline, statuses};
  call.set_all(Status::kUnavailable);
  const CallGuard guard(*this);
  if (guard.core() == nullptr) return;
  in_namespace(*guard.core(), handle, call,
               [&] { return get_entries(*guard.core(), call, call.all_entries(), memory); });
  count_call(counters_, kGetCounters, statuses, keys.entry_count());
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < keys.entry_count(); ++i)
    if (call.status(i) == Status::kOk) bytes += memory.entry_bytes(i);
  counters_.add(Counter::kGetBytes, bytes);
}

bool PageClient::get_entries(Core& core, Call& call, const std::vector<uint32_t>& entries,
                             const Pieces& memory) {
  std::vector<ObjectLocation> where(call.keys.entry_count());
  core.locations.find(call.fingerprints, entries, Deadline::Clock::now(), &where);
  std::vector<uint32_t> unknown;
  for (const uint32_t entry : entries)
    if (!where[entry].known()) unknown.push_back(entry);
  if (!unknown.empty()) {
    const Status status = look_up(core, call, unknown, &where);
    if (status == Status::kStaleNamespace) return false;
    for (const uint32_t entry : unknown) call.set(entry, status == Status::kOk ? Status::kMiss : status);
  }
  std::vector<uint32_t> pending;
  for (const uint32_t entry : entries)
    if (where[entry].known()) {
      call.set(entry, Status::kUnavailable);
      pending.push_back(entry);
    }

  std::vector<Tried> tried(call.keys.entry_count());
  std::vector<std::pair<uint32_t, uint32_t>> suspects;  // (segment, entry)
  TransportBatch batch;
  batch.kind = BatchKind::kGet;
  batch.memory = &memory;
  bool asked_again = false;
  while (!pending.empty()) {
    if (call.deadline.expired()) {
      for (const uint32_t entry : pending)
        if (call.status(entry) == Status::kUnavailable) call.set(entry, Status::kTimeout);
      break;
    }
    Groups groups;
    std::vector<uint32_t> stuck;
    ReplicaChoice choose(core.peers, counters_);
    for (const uint32_t entry : pending) {
      const uint32_t segment = choose(where[entry], tried[entry]);
      if (segment == wire::kNoSegment) {
        stuck.push_back(entry);
      } else {
        groups[segment].push_back(entry);
        tried[entry].add(segment);
      }
    }
    if (groups.empty()) {
      // Every holder we knew of has failed: the directory may know better by now, and is asked once.
      if (asked_again) break;
      asked_again = true;
      core.locations.forget(call.fingerprints, stuck);
      const Status status = look_up(core, call, stuck, &where);
      if (status == Status::kStaleNamespace) return false;
      if (status != Status::kOk) break;
      pending.clear();
      for (const uint32_t entry : stuck)
        if (where[entry].known()) pending.push_back(entry);
      continue;
    }
    submit(core, call, groups, batch);
    pending = std::move(stuck);
    for (const auto& [segment, asked] : groups) {
      for (const uint32_t entry : asked) {
        if (call.status(entry) == Status::kOk) continue;
        if (call.status(entry) == Status::kDigestMismatch) suspects.emplace_back(segment, entry);
        pending.push_back(entry);
      }
    }
    std::sort(pending.begin(), pending.end());
    if (any_stale(pending, call.statuses)) return false;
  }
  if (!suspects.empty()) report_suspects(core, call, suspects);
  return true;
}

void PageClient::report_suspects(Core& core, Call& call,
                                 const std::vector<std::pair<uint32_t, uint32_t>>& suspects) {
  Groups groups;
  for (const auto& [segment, entry] : suspects) groups[segment].push_back(entry);
  for (auto& [segment, entries] : groups) {
    std::sort(entries.begin(), entries.end());
    const auto peer = core.peers.find(segment);
    if (peer == nullptr || call.deadline.expired()) continue;
    std::vector<uint8_t> verdicts(call.keys.entry_count(),
                                  0);  // the caller's statuses stay what the get made them
    TransportBatch batch;
    batch.kind = BatchKind::kSuspect;
    batch.keys = &call.keys;
    batch.statuses = verdicts.data();
    batch.entries = entries;
    peer->submit(batch, call.deadline.within_ms(kSuspectMs));
    for (const uint32_t entry : entries)
      if (batch.status(entry) == Status::kDigestMismatch) counters_.add(Counter::kSuspectsConfirmed);
  }
}

std::vector<uint32_t> PageClient::fetch_lengths(int handle, const KeyBlock& keys, uint64_t bytes_max,
                                                const Deadline& deadline, uint8_t* statuses) {
  Call call{keys, deadline, statuses};
  call.set_all(Status::kUnavailable);
  std::vector<uint32_t> lengths(keys.entry_count(), 0);
  const CallGuard guard(*this);
  if (guard.core() == nullptr) return lengths;
  in_namespace(*guard.core(), handle, call, [&] {
    Core& core = *guard.core();
    const std::vector<uint32_t> all = call.all_entries();
    std::vector<ObjectLocation> where(keys.entry_count());
    const Status status = look_up(core, call, all, &where);
    if (status == Status::kStaleNamespace) return false;
    // Lengths are the directory's to tell, since an object may have been replaced; without it, what was there a moment ago.
    if (status != Status::kOk) core.locations.find(call.fingerprints, all, Deadline::Clock::now(), &where);
    uint64_t total_bytes = 0;
    for (uint32_t i = 0; i < keys.entry_count(); ++i) {
      call.set(i, status == Status::kOk ? Status::kMiss : status);
      if (!where[i].known() || where[i].length == 0) continue;
      const bool fits =
          where[i].length <= wire::kObjectBytesMax && total_bytes + where[i].length <= bytes_max;
      call.set(i, fits ? Status::kUnavailable : Status::kTooLarge);
      if (!fits) continue;
      lengths[i] = where[i].length;
      total_bytes += where[i].length;
    }
    return true;
  });
  return lengths;
}

void PageClient::fetch(int handle, const KeyBlock& keys, const std::vector<uint32_t>& lengths,
                       const std::vector<uint64_t>& pointers, const Deadline& deadline, uint8_t* statuses) {
  Call call{keys, deadline, statuses};
  const CallGuard guard(*this);
  std::vector<uint8_t> found(keys.entry_count(), static_cast<uint8_t>(Status::kUnavailable));
  std::vector<uint32_t> wanted;
  for (uint32_t i = 0; i < keys.entry_count(); ++i)
    if (lengths[i] > 0) wanted.push_back(i);
  if (guard.core() != nullptr && !wanted.empty()) {
    const Pieces memory = Pieces::sparse(pointers, {lengths.begin(), lengths.end()});
    call.statuses = found.data();
    in_namespace(*guard.core(), handle, call,
                 [&] { return get_entries(*guard.core(), call, wanted, memory); });
  }
  uint64_t bytes = 0;
  for (const uint32_t i : wanted) {
    statuses[i] = found[i];
    if (found[i] == static_cast<uint8_t>(Status::kOk)) bytes += lengths[i];
  }
  count_call(counters_, kFetchCounters, statuses, keys.entry_count());
  counters_.add(Counter::kFetchBytes, bytes);
}

}  // namespace kvstore
