#include "base/huge_pages.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <stdexcept>

namespace kvstore {
namespace {

std::optional<uint64_t> read_count(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

std::string size_text(uint64_t bytes) {
  return bytes >= 1ull << 30 ? std::to_string(bytes >> 30) + " GiB" : std::to_string(bytes >> 20) + " MiB";
}

}  // namespace

HugePages huge_pages_of(const std::string& text) {
  if (text == "off") return HugePages::kOff;
  if (text == "thp") return HugePages::kTransparent;
  if (text == "2MiB") return HugePages::k2MiB;
  if (text == "1GiB") return HugePages::k1GiB;
  throw std::invalid_argument("huge_pages is off, thp, 2MiB or 1GiB, not '" + text + "'");
}

uint64_t reserved_page_bytes(HugePages pages) noexcept {
  if (pages == HugePages::k2MiB) return 2ull << 20;
  if (pages == HugePages::k1GiB) return 1ull << 30;
  return 0;
}

std::string huge_page_limit_in_the_way(uint64_t bytes, uint64_t page_bytes) {
  const std::string directory =
      "/sys/kernel/mm/hugepages/hugepages-" + std::to_string(page_bytes >> 10) + "kB";
  const auto total = read_count(directory + "/nr_hugepages");
  if (!total)
    return "this kernel has no huge pages of " + size_text(page_bytes) + " (" + directory +
           " is not there): set huge_pages to thp, or to another size";
  const uint64_t free = read_count(directory + "/free_hugepages").value_or(0);
  const uint64_t promised =
      read_count(directory + "/resv_hugepages").value_or(0);  // free, yet no longer to be had
  const uint64_t on_demand = read_count(directory + "/nr_overcommit_hugepages").value_or(0);
  const uint64_t surplus = read_count(directory + "/surplus_hugepages").value_or(0);
  const uint64_t can_be_had = free - std::min(free, promised) + on_demand - std::min(on_demand, surplus);
  const uint64_t wanted = (bytes + page_bytes - 1) / page_bytes;
  if (wanted <= can_be_had) return "";
  return std::to_string(wanted) + " huge pages of " + size_text(page_bytes) + " are needed and " +
         std::to_string(can_be_had) + " of " + std::to_string(*total) + " are free: `echo " +
         std::to_string(*total + wanted - can_be_had) + " > " + directory +
         "/nr_hugepages` as root, lower the capacity, or set huge_pages to thp";
}

}  // namespace kvstore
