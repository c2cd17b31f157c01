#include "transports/ucx/core/library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>

#include "base/mutex.hpp"

namespace kvstore {
namespace {

struct Variable {
  const char* name;
  const char* value;
};
constexpr Variable kVariables[] = {
    {"UCX_HANDLE_ERRORS", "none"},                                // no handlers of SIGSEGV and its like
    {"UCX_ERROR_SIGNALS", ""},         {"UCX_DEBUG_SIGNO", "0"},  // else SIGHUP
    {"UCX_MEM_EVENTS", "n"},  // no patched mmap, munmap, ...: memory is registered by hand here
    {"UCX_MEM_MALLOC_HOOKS", "n"},     {"UCX_MEM_MMAP_HOOK_MODE", "none"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"}, {"UCX_LOG_FILE", "stderr"},  // stdout belongs to the program
    {"UCX_LOG_LEVEL", "error"},                                     // a peer that goes away is no news
};

std::string absolute(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
  return real == nullptr ? path : real.get();
}

template <typename Function>
void resolve(void* library, const char* name, const std::string& path, Function* out) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr) throw UcxError(path + " lacks " + name + ": it is no UCX library that fits");
  *out = reinterpret_cast<Function>(symbol);
}

}  // namespace

UcxEnvironment::UcxEnvironment() {
  for (const Variable& v : kVariables)
    if (::setenv(v.name, v.value, 0) == 0 && std::getenv(v.name) != nullptr) set_.push_back(v.name);
}

UcxEnvironment::~UcxEnvironment() {
  for (const char* name : set_) ::unsetenv(name);
}

UcxLibrary::UcxLibrary(void* library, const std::string& requested) : requested_(requested) {
  resolve(library, "ucp_get_version", requested, &api_.get_version);
  unsigned major = 0, minor = 0, release = 0;
  api_.get_version(&major, &minor, &release);
  Dl_info info{};
  const bool found = ::dladdr(reinterpret_cast<void*>(api_.get_version), &info) != 0;
  const std::string path = found && info.dli_fname != nullptr ? info.dli_fname : requested;
  description_ = path + " (UCX " + std::to_string(major) + "." + std::to_string(minor) + "." +
                 std::to_string(release) + ")";
  if (requested.find('/') != std::string::npos && absolute(path) != absolute(requested))
    throw UcxError("this process has loaded " + description_ + " before, which stands in the way of " +
                   requested + ": let both use the same UCX");
  if (major != ucx::kMajor || minor < ucx::kMinorMin)
    throw UcxError(description_ +
                   " does not fit: UCX from 1.13 to below 2.0 is needed; name another library");
  const auto get = [&](const char* name, auto* out) { resolve(library, name, path, out); };
  get("ucp_config_read", &api_.config_read);
  get("ucp_config_modify", &api_.config_modify);
  get("ucp_config_release", &api_.config_release);
  get("ucp_init_version", &api_.init_version);
  get("ucp_worker_create", &api_.worker_create);
  get("ucp_worker_destroy", &api_.worker_destroy);
  get("ucp_worker_get_address", &api_.worker_get_address);
  get("ucp_worker_release_address", &api_.worker_release_address);
  get("ucp_worker_get_efd", &api_.worker_get_efd);
  get("ucp_worker_arm", &api_.worker_arm);
  get("ucp_worker_progress", &api_.worker_progress);
  get("ucp_ep_create", &api_.ep_create);
  get("ucp_ep_close_nbx", &api_.ep_close_nbx);
  get("ucp_mem_map", &api_.mem_map);
  get("ucp_mem_unmap", &api_.mem_unmap);
  get("ucp_rkey_pack", &api_.rkey_pack);
  get("ucp_rkey_buffer_release", &api_.rkey_buffer_release);
  get("ucp_ep_rkey_unpack", &api_.ep_rkey_unpack);
  get("ucp_rkey_destroy", &api_.rkey_destroy);
  get("ucp_get_nbx", &api_.get_nbx);
  get("ucp_request_check_status", &api_.request_check_status);
  get("ucp_request_free", &api_.request_free);
  get("ucs_status_string", &api_.status_string);  // found in libucs, which libucp needs
}

const UcxLibrary& UcxLibrary::load(const std::string& path, const UcxEnvironment&) {
  static Mutex mutex;
  static const UcxLibrary* loaded GUARDED_BY(mutex) = nullptr;
  const std::string requested = path.empty() ? kUcxLibraryDefault : path;
  const MutexLock lock(mutex);
  if (loaded != nullptr) {
    if (absolute(loaded->requested_) != absolute(requested))
      throw UcxError("this process uses " + loaded->description_ + " already, not " + requested +
                     ": let all clients and segments of a process name the same library");
    return *loaded;
  }
  void* library = ::dlopen(requested.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw UcxError(
        "UCX can't be loaded (" + std::string(why == nullptr ? requested : why) +
        "): install UCX with verbs support (libucx0, MOFED or HPC-X), or set rdma_library to its path");
  }
  loaded = new UcxLibrary(library, requested);
  return *loaded;
}

}  // namespace kvstore
