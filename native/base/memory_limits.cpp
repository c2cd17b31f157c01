#include "base/memory_limits.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace kvstore {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;

std::string in_mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  if (word == "max") return kUnlimited;
  std::istringstream digits(word);
  uint64_t value = 0;
  if (!(digits >> value)) return std::nullopt;
  return value;
}

// The value of "name value" in a file of such lines, in the file's own unit.
std::optional<uint64_t> read_field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string first;
    uint64_t value = 0;
    if (words >> first >> value && first == name) return value;
  }
  return std::nullopt;
}

std::string system_memory_in_the_way(uint64_t bytes) {
  const auto available_kib = read_field("/proc/meminfo", "MemAvailable:");
  if (!available_kib || bytes <= *available_kib * 1024) return "";
  return "MemAvailable of the machine is " + in_mib(*available_kib * 1024) +
         ": lower capacity_bytes or free memory";
}

// One level of a cgroup hierarchy: what may still be charged to it, page cache that can be dropped included.
std::string cgroup_in_the_way(uint64_t bytes, const std::string& directory, const char* max,
                              const char* current, const char* cache) {
  const auto limit = read_number(directory + "/" + max);
  const auto used = read_number(directory + "/" + current);
  if (!limit || !used || *limit == kUnlimited) return "";
  const uint64_t droppable = read_field(directory + "/memory.stat", cache).value_or(0);
  const uint64_t busy = *used - std::min(*used, droppable);
  if (busy <= *limit && bytes <= *limit - busy) return "";
  return "the memory cgroup allows " + in_mib(*limit) + " and " + in_mib(busy) + " are in use (" + directory +
         "/" + max + "): raise the container's memory limit, or lower capacity_bytes";
}

std::string cgroups_in_the_way(uint64_t bytes) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    std::string path = line.substr(second + 1);
    // Every ancestor may carry a limit; inside a cgroup namespace the path is "/".
    for (bool at_root = false; !at_root;) {
      at_root = path.empty() || path == "/";
      const std::string directory = at_root ? root : root + path;
      const std::string found =
          v2 ? cgroup_in_the_way(bytes, directory, "memory.max", "memory.current", "inactive_file")
             : cgroup_in_the_way(bytes, directory, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                 "total_inactive_file");
      if (!found.empty()) return found;
      if (!at_root) path.resize(path.rfind('/'));
    }
  }
  return "";
}

std::string rlimit_in_the_way(uint64_t bytes, __rlimit_resource_t resource, const char* name,
                              const char* remedy) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur)
    return "";
  return std::string(name) + " is " + in_mib(limit.rlim_cur) + ": " + remedy;
}

// A root without CAP_IPC_LOCK, as in most containers, is bound by the limit like everybody.
bool may_lock_anything() {
  constexpr unsigned kCapIpcLock = 14;
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t capabilities = 0;
    if (words >> name >> std::hex >> capabilities && name == "CapEff:")
      return (capabilities >> kCapIpcLock & 1) != 0;
  }
  return ::geteuid() == 0;
}

}  // namespace

std::string memory_limit_in_the_way(const MemoryNeed& need) {
  std::string found =
      rlimit_in_the_way(need.map_bytes, RLIMIT_FSIZE, "RLIMIT_FSIZE", "raise it (ulimit -f unlimited)");
  if (found.empty())
    found = rlimit_in_the_way(need.map_bytes, RLIMIT_AS, "RLIMIT_AS", "raise it (ulimit -v unlimited)");
  if (found.empty() && need.locked && !may_lock_anything())
    found = rlimit_in_the_way(
        need.map_bytes, RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK",
        "raise it (ulimit -l unlimited, or LimitMEMLOCK=infinity), grant CAP_IPC_LOCK, or set "
        "lock_memory to no");
  if (need.from_reserved_pages) return found;
  if (found.empty()) found = system_memory_in_the_way(need.new_bytes);
  if (found.empty()) found = cgroups_in_the_way(need.new_bytes);
  return found;
}

}  // namespace kvstore
