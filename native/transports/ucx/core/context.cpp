#include "transports/ucx/core/context.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "base/mutex.hpp"
#include "base/signals_blocked.hpp"

namespace kvstore {
namespace {

bool unsafe_transports_allowed() {
  const char* value = std::getenv(kUcxUnsafeVariable);
  return value != nullptr && std::strcmp(value, "1") == 0;
}

ucx::Context* open_handle(const UcxLibrary& library) {
  const ucx::Api& api = library.api();
  ucx::Config* config = nullptr;
  ucx::Status status = api.config_read(nullptr, nullptr, &config);
  if (status != ucx::Status::kOk)
    throw UcxError(library.description() + " refuses its configuration (" + library.text(status) +
                   "): check the UCX_* variables and ucx.conf");
  // With rc and dc the device answers reads by itself. Everything else, ud included, has the peer's thread answer them in software,
  // which dies (ucs_fatal) when the reader goes away in the middle.
  status = api.config_modify(config, "TLS", unsafe_transports_allowed() ? "tcp" : "rc,dc");
  ucx::ContextParams params{};
  params.field_mask = ucx::ContextParams::kFeatures | ucx::ContextParams::kMtWorkersShared;
  params.features = ucx::ContextParams::kRma | ucx::ContextParams::kWakeup;
  params.mt_workers_shared = 1;
  ucx::Context* context = nullptr;
  if (status == ucx::Status::kOk)
    status = api.init_version(ucx::kMajor, ucx::kMinorMin, &params, config, &context);
  api.config_release(config);
  if (status != ucx::Status::kOk)
    throw UcxError(
        library.description() + " finds no InfiniBand or RoCE device that it can use (" +
        library.text(status) +
        "), and pages are not carried over its tcp or shared memory transports: check that `ucx_info -d` "
        "lists an rc or dc transport, that this UCX was built with verbs, that /dev/infiniband is visible "
        "here "
        "and that UCX_NET_DEVICES, if set, names the device; or set rdma to off");
  return context;
}

}  // namespace

UcxContext::UcxContext(const UcxLibrary& library, ucx::Context* handle)
    : library_(library), handle_(handle), pid_(::getpid()) {}

bool UcxContext::in_own_process() const { return ::getpid() == pid_; }

std::shared_ptr<UcxContext> UcxContext::open(const std::string& library_path) {
  static Mutex mutex;
  // Never destroyed: memory of this process may be registered with it until the very end.
  static auto* const opened PT_GUARDED_BY(mutex) = new std::shared_ptr<UcxContext>;
  const MutexLock lock(mutex);
  if (*opened != nullptr && !(*opened)->in_own_process())
    throw UcxError(
        "RDMA was in use before this process was forked, and UCX does not work in a forked child: start the "
        "process by spawn "
        "or exec, or make its client before anything else uses RDMA");
  const UcxEnvironment environment;
  const SignalsBlocked blocked;
  const UcxLibrary& library = UcxLibrary::load(library_path, environment);
  if (*opened == nullptr)
    *opened = std::shared_ptr<UcxContext>(new UcxContext(library, open_handle(library)));
  return *opened;
}

UcxMemory::UcxMemory(std::shared_ptr<UcxContext> context, void* address, size_t size_bytes)
    : context_(std::move(context)), address_(reinterpret_cast<uint64_t>(address)), size_bytes_(size_bytes) {
  const ucx::Api& api = context_->api();
  ucx::MemoryParams params{};
  params.field_mask = ucx::MemoryParams::kAddress | ucx::MemoryParams::kLength |
                      ucx::MemoryParams::kProtection | ucx::MemoryParams::kMemoryType;
  params.address = address;
  params.length = size_bytes;
  params.protection =
      ucx::MemoryParams::kLocalRead | ucx::MemoryParams::kLocalWrite | ucx::MemoryParams::kRemoteRead;
  params.memory_type = ucx::MemoryParams::kHost;
  ucx::Status status = api.mem_map(context_->handle(), &params, &handle_);
  if (status != ucx::Status::kOk)
    throw UcxError(
        std::to_string(size_bytes) + " bytes can't be registered for RDMA (" +
        context_->library().text(status) +
        "): raise the memory lock limit (ulimit -l unlimited, in a container memlock or CAP_IPC_LOCK)");
  void* packed = nullptr;
  size_t packed_bytes = 0;
  status = api.rkey_pack(context_->handle(), handle_, &packed, &packed_bytes);
  if (status != ucx::Status::kOk) {
    api.mem_unmap(context_->handle(), handle_);
    throw UcxError("no remote key can be had for registered memory: " + context_->library().text(status));
  }
  const auto* bytes = static_cast<const uint8_t*>(packed);
  remote_key_.assign(bytes, bytes + packed_bytes);
  api.rkey_buffer_release(packed);
}

UcxMemory::~UcxMemory() {
  if (context_->in_own_process()) context_->api().mem_unmap(context_->handle(), handle_);
}

UcxBuffer::UcxBuffer(std::shared_ptr<UcxContext> context, size_t size_bytes) : size_bytes_(size_bytes) {
  void* map =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<uint8_t*>(map);
  ::madvise(map, size_bytes, MADV_DONTFORK);  // copy on write would move the pages away from the device
  try {
    memory_ = std::make_unique<UcxMemory>(std::move(context), map, size_bytes);
  } catch (...) {
    ::munmap(map, size_bytes);
    throw;
  }
}

UcxBuffer::~UcxBuffer() {
  memory_.reset();
  ::munmap(data_, size_bytes_);
}

}  // namespace kvstore
