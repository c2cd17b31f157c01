#include "transports/ucx/core/endpoint.hpp"

#include <algorithm>
#include <utility>

namespace kvstore {
namespace {

// UCX reads packed addresses and keys without being told where they end. In a padded copy a malformed one is read as zeros behind
// its end, and not as whatever lies there.
std::vector<uint8_t> padded(const std::vector<uint8_t>& packed) {
  constexpr size_t kPaddingBytes = 64u << 10;
  std::vector<uint8_t> copy(packed.size() + kPaddingBytes, 0);
  std::copy(packed.begin(), packed.end(), copy.begin());
  return copy;
}

}  // namespace

UcxEndpoint::UcxEndpoint(UcxWorker& worker, const std::vector<uint8_t>& address) : worker_(worker) {
  const std::vector<uint8_t> safe = padded(address);
  ucx::EndpointParams params{};
  params.field_mask = ucx::EndpointParams::kRemoteAddress | ucx::EndpointParams::kErrorMode |
                      ucx::EndpointParams::kErrorHandler;
  params.address = reinterpret_cast<const ucx::Address*>(safe.data());
  params.error_mode = ucx::EndpointParams::kPeerErrors;
  params.error_handler.callback = &UcxEndpoint::peer_failed;
  params.error_handler.argument = this;
  const UcxContext& context = *worker_.context();
  const ucx::Status status = context.api().ep_create(worker_.handle(), &params, &handle_);
  if (status != ucx::Status::kOk)
    throw UcxError("the peer can't be reached by RDMA: " + context.library().text(status));
}

UcxEndpoint::~UcxEndpoint() { close(); }

void UcxEndpoint::peer_failed(void* self, ucx::Endpoint*, ucx::Status) {
  static_cast<UcxEndpoint*>(self)->failed_ = true;
}

void UcxEndpoint::completed(void* request, ucx::Status status, void* self) {
  auto* endpoint = static_cast<UcxEndpoint*>(self);
  --endpoint->in_flight_;
  if (status != ucx::Status::kOk) endpoint->failed_ = true;
  endpoint->worker_.context()->api().request_free(request);
}

bool UcxEndpoint::read(void* to, size_t size, uint64_t remote_address, const RemoteKey& key,
                       const UcxMemory& local) {
  if (failed_ || handle_ == nullptr) return false;
  ucx::RequestParams params{};
  params.mask = ucx::RequestParams::kCallback | ucx::RequestParams::kUserData |
                ucx::RequestParams::kMemoryType | ucx::RequestParams::kMemory;
  params.callback = &UcxEndpoint::completed;
  params.user_data = this;
  params.memory_type = ucx::MemoryParams::kHost;
  params.memory = local.handle();
  void* request = worker_.context()->api().get_nbx(handle_, to, size, remote_address, key.handle_, &params);
  if (ucx::is_error(request))
    failed_ = true;
  else if (request != nullptr)
    ++in_flight_;  // completed() runs in later progress, never in here
  return !failed_;
}

void UcxEndpoint::close() {
  if (handle_ == nullptr) return;
  ucx::Endpoint* handle = std::exchange(handle_, nullptr);
  const UcxContext& context = *worker_.context();
  if (!context.in_own_process()) return;
  failed_ = true;
  ucx::RequestParams params{};
  params.mask = ucx::RequestParams::kFlags;
  params.flags = ucx::RequestParams::kForceClose;
  void* closing = context.api().ep_close_nbx(handle, &params);
  const bool waits = closing != nullptr && !ucx::is_error(closing);
  const auto ended = [&] {
    return in_flight_ == 0 &&
           (!waits || context.api().request_check_status(closing) != ucx::Status::kInProgress);
  };
  while (worker_.work_until(ended, UcxWorker::Clock::now() + std::chrono::seconds(1)) !=
         UcxWorker::Woken::kDone) {
  }
  if (waits) context.api().request_free(closing);
}

UcxEndpoint::RemoteKey::RemoteKey(UcxEndpoint& endpoint, const std::vector<uint8_t>& packed)
    : endpoint_(endpoint) {
  const UcxContext& context = *endpoint.worker_.context();
  const ucx::Status status =
      endpoint.handle_ == nullptr
          ? ucx::Status::kNoDevice
          : context.api().ep_rkey_unpack(endpoint.handle_, padded(packed).data(), &handle_);
  if (status != ucx::Status::kOk)
    throw UcxError("the peer's memory can't be read by RDMA: " + context.library().text(status));
}

UcxEndpoint::RemoteKey::~RemoteKey() {
  const UcxContext& context = *endpoint_.worker_.context();
  if (context.in_own_process()) context.api().rkey_destroy(handle_);
}

}  // namespace kvstore
