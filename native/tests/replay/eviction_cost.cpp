// eviction_cost OBJECTS: nanoseconds of CPU of an insert with the eviction that makes room for it, and of a use, of each
// policy with so many objects. benchmarks/trace_hit_ratio.py --costs runs it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "protocol/keys.hpp"
#include "segment/eviction/eviction_policy.hpp"

using namespace kvstore;

template <typename Call>
static double median_ns(Call&& call) {
  double best[5];
  for (double& ns : best) {
    constexpr uint32_t kCalls = 100000;
    const std::clock_t begin = std::clock();
    for (uint32_t i = 0; i < kCalls; ++i) call();
    ns = 1e9 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / kCalls;
  }
  std::sort(best, best + 5);
  return best[2];
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto objects = static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10));
  for (const std::string name : {"lru", "lrfu", "2q", "interval", "adaptive"}) {
    const auto policy = make_eviction_policy(name, objects);
    uint64_t next = 0;
    for (uint32_t slot = 0; slot < objects; ++slot, ++next)
      policy->on_insert({slot, mix64(next + 1), 1, static_cast<uint32_t>(next % 64), Keep::kNormal});
    const auto replace = [&](uint64_t object) {
      const uint32_t victim = policy->coldest();
      policy->on_evict(victim);
      policy->on_insert({victim, mix64(object + 1), 1, static_cast<uint32_t>(object % 64), Keep::kNormal});
    };
    const auto use = [&] { policy->on_use(static_cast<uint32_t>(mix64(++next) % objects)); };
    for (uint32_t i = 0; i < objects / 2; ++i) {  // so that all kinds are there
      replace(i % 4 == 0 ? next - objects - i % objects : next++);
      if (i % 2 == 0) use();
    }
    const double insert_ns = median_ns([&] { replace(next++); });
    std::printf("%s %.0f %.0f\n", name.c_str(), insert_ns, median_ns(use));
  }
}
