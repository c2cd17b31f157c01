// The part of UCX's binary interface that is used here, as of UCX 1.13 (the oldest release supported), declared by us so that
// building needs no UCX. UCX keeps it stable within major version 1: structures only grow at their end, and a field counts only
// where its bit is set in `field_mask`. Nothing but ucx_* files includes this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvstore::ucx {

constexpr unsigned kMajor = 1;
constexpr unsigned kMinorMin = 13;

// ucs_status_t: a packed enumeration, one byte wide.
enum class Status : int8_t {
  kOk = 0,
  kInProgress = 1,
  kNoDevice = -14,
  kBusy = -15,
};

// A ucs_status_ptr_t is null (done), a negative status, or a request in progress.
constexpr intptr_t kStatusLast = -100;
inline bool is_error(const void* p) {
  return reinterpret_cast<uintptr_t>(p) >= static_cast<uintptr_t>(kStatusLast);
}
inline Status status_of(const void* p) { return static_cast<Status>(reinterpret_cast<intptr_t>(p)); }

struct Context;
struct Config;
struct Worker;
struct Endpoint;
struct Memory;
struct RemoteKey;
struct Address;
struct ConnectionRequest;

struct ContextParams {  // ucp_params_t
  enum : uint64_t { kFeatures = 1u << 0, kMtWorkersShared = 1u << 5 };
  enum : uint64_t { kRma = 1u << 1, kWakeup = 1u << 4 };
  uint64_t field_mask;
  uint64_t features;
  size_t request_size;
  void (*request_init)(void*);
  void (*request_cleanup)(void*);
  uint64_t tag_sender_mask;
  int mt_workers_shared;
  size_t estimated_num_eps;
  size_t estimated_num_ppn;
  const char* name;
  size_t reserved[8];  // room for what later releases append; masked out
};

struct WorkerParams {  // ucp_worker_params_t
  enum : uint64_t { kThreadMode = 1u << 0 };
  enum : int { kSerialized = 1 };  // one thread at a time
  uint64_t field_mask;
  int thread_mode;
  unsigned long cpu_mask[1024 / (8 * sizeof(unsigned long))];
  unsigned events;
  void* user_data;
  int event_fd;
  uint64_t flags;
  const char* name;
  size_t am_alignment;
  uint64_t client_id;
  size_t reserved[8];
};

struct SocketAddress {  // ucs_sock_addr_t
  const void* address;
  uint32_t size;
};

struct EndpointParams {  // ucp_ep_params_t
  enum : uint64_t { kRemoteAddress = 1u << 0, kErrorMode = 1u << 1, kErrorHandler = 1u << 2 };
  enum : int { kPeerErrors = 1 };
  uint64_t field_mask;
  const Address* address;
  int error_mode;
  struct {
    void (*callback)(void* argument, Endpoint* endpoint, Status status);
    void* argument;
  } error_handler;
  void* user_data;
  unsigned flags;
  SocketAddress remote;
  ConnectionRequest* connection_request;
  const char* name;
  SocketAddress local;
  size_t reserved[8];
};

struct MemoryParams {  // ucp_mem_map_params_t
  enum : uint64_t { kAddress = 1u << 0, kLength = 1u << 1, kProtection = 1u << 3, kMemoryType = 1u << 4 };
  enum : unsigned { kLocalRead = 1u << 0, kLocalWrite = 1u << 1, kRemoteRead = 1u << 8 };
  enum : int { kHost = 0 };
  uint64_t field_mask;
  void* address;
  size_t length;
  unsigned flags;
  unsigned protection;
  int memory_type;
  const void* exported_buffer;
  size_t reserved[8];
};

struct RequestParams {  // ucp_request_param_t
  enum : uint32_t {
    kCallback = 1u << 1,
    kUserData = 1u << 2,
    kFlags = 1u << 4,
    kMemoryType = 1u << 6,
    kMemory = 1u << 8
  };
  enum : uint32_t { kForceClose = 1u << 0 };  // flags of ep_close
  uint32_t mask;
  uint32_t flags;
  void* request;
  void (*callback)(void* request, Status status, void* user_data);
  uint64_t datatype;
  void* user_data;
  void* reply_buffer;
  int memory_type;
  void* receive_info;
  Memory* memory;
  size_t reserved[8];
};

struct Api {
  void (*get_version)(unsigned* major, unsigned* minor, unsigned* release);
  Status (*config_read)(const char* env_prefix, const char* file, Config** config);
  Status (*config_modify)(Config* config, const char* name, const char* value);
  void (*config_release)(Config* config);
  Status (*init_version)(unsigned major, unsigned minor, const ContextParams* params, const Config* config,
                         Context** context);
  Status (*worker_create)(Context* context, const WorkerParams* params, Worker** worker);
  void (*worker_destroy)(Worker* worker);
  Status (*worker_get_address)(Worker* worker, Address** address, size_t* size);
  void (*worker_release_address)(Worker* worker, Address* address);
  Status (*worker_get_efd)(Worker* worker, int* fd);
  Status (*worker_arm)(Worker* worker);
  unsigned (*worker_progress)(Worker* worker);
  Status (*ep_create)(Worker* worker, const EndpointParams* params, Endpoint** endpoint);
  void* (*ep_close_nbx)(Endpoint* endpoint, const RequestParams* params);
  Status (*mem_map)(Context* context, const MemoryParams* params, Memory** memory);
  Status (*mem_unmap)(Context* context, Memory* memory);
  Status (*rkey_pack)(Context* context, Memory* memory, void** buffer, size_t* size);
  void (*rkey_buffer_release)(void* buffer);
  Status (*ep_rkey_unpack)(Endpoint* endpoint, const void* buffer, RemoteKey** key);
  void (*rkey_destroy)(RemoteKey* key);
  void* (*get_nbx)(Endpoint* endpoint, void* to, size_t size, uint64_t remote_address, RemoteKey* key,
                   const RequestParams* params);
  Status (*request_check_status)(void* request);
  void (*request_free)(void* request);
  const char* (*status_string)(Status status);  // of libucs
};

}  // namespace kvstore::ucx
