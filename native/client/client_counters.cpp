#include "client/client_counters.hpp"

#include "protocol/wire.hpp"

namespace kvstore {
namespace {

// In the order of the enumeration.
constexpr const char* kNames[] = {
    "get_calls",
    "get_keys",
    "get_hits",
    "get_misses",
    "get_failures",
    "get_bytes",
    "put_calls",
    "put_keys",
    "put_hits",
    "put_misses",
    "put_failures",
    "put_bytes",
    "put_exists",
    "put_conflicts",
    "put_copies",
    "put_copies_short",
    "exists_calls",
    "exists_keys",
    "exists_hits",
    "exists_misses",
    "exists_failures",
    "fetch_calls",
    "fetch_keys",
    "fetch_hits",
    "fetch_misses",
    "fetch_failures",
    "fetch_bytes",
    "remove_calls",
    "remove_keys",
    "remove_hits",
    "remove_misses",
    "remove_failures",
    "keep_calls",
    "keep_keys",
    "keep_hits",
    "keep_misses",
    "keep_failures",
    "keep_refused",
    "keep_unsupported",
    "timeouts",
    "connects",
    "reconnects",
    "refused_hellos",
    "protocol_errors",
    "breaker_open",
    "breaker_refusals",
    "holders_silent",
    "digest_mismatches",
    "generation_mismatches",
    "suspects_confirmed",
    "stale_namespace",
    "map_refreshes",
    "locations_used",
    "locations_stale",
    "locations_without_directory",
    "exists_guessed",
    "locates_refused",
    "registrations_refused",
    "internal_errors",
};
static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<size_t>(Counter::kCount), "a name a counter");

}  // namespace

void ClientCounters::count(const CallCounters& verb, const uint8_t* statuses, size_t entry_count) {
  uint64_t hits = 0, misses = 0;
  for (size_t i = 0; i < entry_count; ++i) {
    const auto status = static_cast<wire::Status>(statuses[i]);
    hits += status == wire::Status::kOk || status == wire::Status::kExists;
    misses += status == wire::Status::kMiss || status == wire::Status::kNoSpace;
  }
  add(verb.calls);
  add(verb.keys, entry_count);
  add(verb.hits, hits);
  add(verb.misses, misses);
  add(verb.failures, entry_count - hits - misses);
}

Count& ClientCounters::named(const std::string& name) {
  const MutexLock lock(mutex_);
  return named_[name];
}

uint64_t ClientCounters::value(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto at = named_.find(name);
  return at == named_.end() ? 0 : at->second.value();
}

std::vector<std::pair<std::string, uint64_t>> ClientCounters::all() const {
  std::vector<std::pair<std::string, uint64_t>> out;
  for (size_t i = 0; i < kCount; ++i) out.emplace_back(kNames[i], values_[i].value());
  const MutexLock lock(mutex_);
  for (const auto& [name, count] : named_) out.emplace_back(name, count.value());
  return out;
}

std::string transport_bytes_counter(const char* transport, const char* direction) {
  return std::string("transport_") + transport + "_bytes_" + direction;
}

}  // namespace kvstore
