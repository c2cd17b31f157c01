#include "client/client_counters.hpp"

namespace kvstore {

const char* ClientCounters::name(Counter counter) {
  // In the order of the enumeration.
  static const char* const kNames[] = {
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
      "timeouts",
      "connects",
      "reconnects",
      "refused_hellos",
      "protocol_errors",
      "breaker_open",
      "breaker_refusals",
      "digest_mismatches",
      "generation_mismatches",
      "suspects_confirmed",
      "stale_namespace",
      "map_refreshes",
      "transport_tcp_bytes_get",
      "transport_tcp_bytes_put",
      "transport_same_host_bytes_get",
      "transport_same_host_bytes_put",
      "put_pulled_bytes",
      "transport_rdma_bytes_get",
      "transport_rdma_bytes_put",
      "rdma_bounced_bytes",
      "rdma_refused",
      "rdma_fallbacks",
      "rdma_failures",
      "rdma_registrations",
      "rdma_registration_failures",
      "internal_errors",
  };
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kCount, "a name a counter");
  return kNames[static_cast<size_t>(counter)];
}

}  // namespace kvstore
