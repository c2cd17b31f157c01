// What a client is made with. Bounds are the binding's to check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/declared.hpp"
#include "client/transport.hpp"

namespace kvstore {

struct PageClientOptions {
  std::string token;
  std::string name;
  size_t connections_per_peer = 2;
  size_t copy_threads = 2;
  int connect_timeout_ms = 250;
  int64_t backoff_ms_min = 50;
  int64_t backoff_ms_max = 1000;
  uint64_t run_bytes = 4u << 20;
  size_t location_cache_entries = 262144;
  std::vector<TransportType> transports;  // there to choose from
  OptionTexts transport_options;          // by the names that they declare
  // How long a call that needs no master takes the directory's last word that its namespace is current: pages of one that was
  // cleared meanwhile are left alone by segments that have heard of it, and by this client from its next look on.
  int64_t namespace_confirmed_ms = 10000;
};

}  // namespace kvstore
