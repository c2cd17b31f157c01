// trace_replay FILE PAGES_MAX STORE|RANKED|CLAIRVOYANT POLICY [DISK_FILE DISK_PAGES ADMIT_USES]: plays FILE (requests: u32 count, count u32 pages, count
// bytes of Keep) and prints pages, block hits and prefix hits. benchmarks/trace_hit_ratio.py runs it.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#include "replay/replay.hpp"

using namespace kvstore;

static std::vector<replay::Request> read_requests(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("can't read ") + path);
  std::vector<replay::Request> requests;
  uint32_t count;
  while (file.read(reinterpret_cast<char*>(&count), sizeof(count))) {
    replay::Request request;
    request.pages.resize(count);
    request.keep.resize(count);
    file.read(reinterpret_cast<char*>(request.pages.data()), std::streamsize{4} * count);
    file.read(reinterpret_cast<char*>(request.keep.data()), count);
    if (!file) throw std::runtime_error(std::string(path) + " ends within a request");
    requests.push_back(std::move(request));
  }
  return requests;
}

int main(int argc, char** argv) {
  if (argc != 5 && argc != 8) {
    std::fprintf(stderr,
                 "usage: trace_replay FILE PAGES_MAX store|ranked|clairvoyant POLICY [DISK_FILE DISK_PAGES "
                 "ADMIT_USES]\n");
    return 2;
  }
  try {
    const std::vector<replay::Request> requests = read_requests(argv[1]);
    const auto pages_max = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
    const std::string how = argv[3];
    const std::string disk_path = argc == 8 ? argv[5] : "";
    const uint64_t disk_pages = argc == 8 ? std::strtoull(argv[6], nullptr, 10) : 0;
    const uint32_t admit_uses = argc == 8 ? static_cast<uint32_t>(std::strtoul(argv[7], nullptr, 10)) : 2;
    const replay::Hits hits =
        how == "clairvoyant" ? replay::clairvoyant(requests, pages_max)
        : how == "store" ? replay::Store(argv[4], pages_max, disk_path, disk_pages, admit_uses).play(requests)
                         : replay::Ranked(argv[4], pages_max).play(requests);
    std::printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", hits.pages, hits.blocks, hits.prefix);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "trace_replay: %s\n", e.what());
    return 1;
  }
}
