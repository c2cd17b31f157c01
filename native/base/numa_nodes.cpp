#include "base/numa_nodes.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>

namespace kvstore {
namespace {

constexpr uint32_t kNodesMax = 1024;
constexpr int kBind = 2;  // MPOL_BIND
constexpr const char* kNodes = "/sys/devices/system/node";

// "0-3,8", as the kernel writes sets of nodes.
std::vector<uint32_t> read_set(const std::string& path) {
  std::ifstream file(path);
  std::vector<uint32_t> found;
  std::string part;
  while (std::getline(file, part, ',')) {
    std::istringstream words(part);
    uint32_t first = 0, last = 0;
    char dash = 0;
    if (!(words >> first)) continue;
    if (!(words >> dash >> last)) last = first;
    for (uint32_t node = first; node <= last && node < kNodesMax; ++node) found.push_back(node);
  }
  return found;
}

// What the node can give: free, or page cache that can be dropped.
uint64_t available_bytes(uint32_t node) {
  std::ifstream file(kNodes + std::string("/node") + std::to_string(node) + "/meminfo");
  uint64_t kib = 0;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string node_word, number, name;
    uint64_t value = 0;
    if (words >> node_word >> number >> name >> value && (name == "MemFree:" || name == "Inactive(file):" ||
                                                          name == "Active(file):" || name == "SReclaimable:"))
      kib += value;
  }
  return kib * 1024;
}

std::string list(const std::vector<uint32_t>& nodes) {
  std::string text;
  for (const uint32_t node : nodes) text += (text.empty() ? "" : ",") + std::to_string(node);
  return text;
}

}  // namespace

std::string numa_limit_in_the_way(const std::vector<uint32_t>& nodes, uint64_t bytes) {
  if (nodes.empty()) return "";
  const std::vector<uint32_t> known = read_set(std::string(kNodes) + "/has_memory");
  if (known.empty())
    return std::string("this kernel does not say which NUMA nodes have memory (") + kNodes +
           "/has_memory): leave numa_nodes empty";
  uint64_t available = 0;
  for (const uint32_t node : nodes) {
    if (std::find(known.begin(), known.end(), node) == known.end())
      return "there is no memory on NUMA node " + std::to_string(node) + ", only on " + list(known) + " (" +
             kNodes + "/has_memory): name those in numa_nodes, or none";
    available += available_bytes(node);
  }
  if (bytes <= available) return "";
  return "NUMA nodes " + list(nodes) + " have " + std::to_string(available >> 20) + " MiB to give and " +
         std::to_string(bytes >> 20) +
         " MiB are needed: lower the capacity, name more nodes in numa_nodes, or none";
}

int bind_to_numa_nodes(void* address, uint64_t size_bytes, const std::vector<uint32_t>& nodes) noexcept {
  constexpr uint32_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kNodesMax / kBits> mask{};
  for (const uint32_t node : nodes) {
    if (node >= kNodesMax) return EINVAL;
    mask[node / kBits] |= 1ul << (node % kBits);
  }
  // The kernel takes one bit less than it is told.
  if (::syscall(SYS_mbind, address, size_bytes, kBind, mask.data(), kNodesMax + 1, 0) == 0) return 0;
  return errno;
}

}  // namespace kvstore
