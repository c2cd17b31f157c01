// What the RDMA of one client shares: the device, whether pages may also go over sockets, what is counted, the memory it registered.
// Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "client/transport.hpp"
#include "transports/ucx/core/context.hpp"

namespace kvstore {

constexpr const char* kUcxTransportName = "rdma";

struct UcxShared {
  // `context` outlives it. With `socket_allowed` pages go over the socket wherever RDMA does not work.
  UcxShared(TransportContext& context_in, std::shared_ptr<UcxContext> ucx_in, bool socket_allowed_in);

  // The device's registration of a registered range. Null while there is none: the first to ask starts it on a worker, because it may
  // take longer than a call may last.
  std::shared_ptr<const UcxMemory> memory_of(const std::shared_ptr<const RegisteredRange>& range);

  TransportContext& context;
  const std::shared_ptr<UcxContext> ucx;
  const bool socket_allowed;
  Count &bytes_get, &bytes_put, &socket_bytes_put, &bounced_bytes;
  Count &fallbacks, &failures, &registrations, &registration_failures;

  // Those that a client counts by name besides the bytes, and one that has no UcxShared to count it.
  static std::vector<CounterSpec> counters();
  static constexpr const char* kRefused = "rdma_refused";
};

}  // namespace kvstore
