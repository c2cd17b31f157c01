#include "transports/ucx/client/shared.hpp"

#include "base/mutex.hpp"

namespace kvstore {
namespace {

constexpr const char* kBouncedBytes = "rdma_bounced_bytes";
constexpr const char* kFallbacks = "rdma_fallbacks";
constexpr const char* kFailures = "rdma_failures";
constexpr const char* kRegistrations = "rdma_registrations";
constexpr const char* kRegistrationFailures = "rdma_registration_failures";

// With a range: made when a transport first wants it, and gone with the range.
struct Registration {
  Mutex mutex;
  bool begun GUARDED_BY(mutex) = false;
  std::shared_ptr<const UcxMemory> memory GUARDED_BY(mutex);  // null: not yet, or refused
};
constexpr char kRegistrationKey = 0;  // its address

}  // namespace

UcxShared::UcxShared(TransportContext& context_in, std::shared_ptr<UcxContext> ucx_in, bool socket_allowed_in)
    : context(context_in),
      ucx(std::move(ucx_in)),
      socket_allowed(socket_allowed_in),
      bytes_get(context.counters.named(transport_bytes_counter(kUcxTransportName, "get"))),
      bytes_put(context.counters.named(transport_bytes_counter(kUcxTransportName, "put"))),
      socket_bytes_put(context.counters.named(transport_bytes_counter("tcp", "put"))),
      bounced_bytes(context.counters.named(kBouncedBytes)),
      fallbacks(context.counters.named(kFallbacks)),
      failures(context.counters.named(kFailures)),
      registrations(context.counters.named(kRegistrations)),
      registration_failures(context.counters.named(kRegistrationFailures)) {}

std::vector<CounterSpec> UcxShared::counters() {
  return {
      {kBouncedBytes,
       "of transport_rdma_bytes_*: copied through memory of our own, because theirs is not registered"},
      {kRefused, "1 when RDMA is wanted and this process can't have it"},
      {kFallbacks,
       "times a segment, or a connection to it, was used over TCP because RDMA to it did not work"},
      {kFailures, "RDMA operations and connections that failed"},
      {kRegistrations, "stretches of memory that the RDMA device took"},
      {kRegistrationFailures, "stretches of memory that the RDMA device refused"},
  };
}

std::shared_ptr<const UcxMemory> UcxShared::memory_of(const std::shared_ptr<const RegisteredRange>& range) {
  const auto registration = range->kept<Registration>(&kRegistrationKey);
  const MutexLock lock(registration->mutex);
  if (registration->begun) return registration->memory;
  registration->begun = true;
  context.workers.post([this, range, registration] {
    try {
      auto memory =
          std::make_shared<const UcxMemory>(ucx, reinterpret_cast<void*>(range->address), range->size_bytes);
      const MutexLock ready(registration->mutex);
      registration->memory = std::move(memory);
      registrations.add();
    } catch (const std::exception&) {  // not tried again: its pages go through bounce memory
      registration_failures.add();
    }
  });
  return nullptr;
}

}  // namespace kvstore
