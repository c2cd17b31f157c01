// How long one call keeps the index to itself while it grows, takes inventories and loses segments. KVSTORE_STALL_ENTRIES sets
// how many entries it grows to (1,000,000 where it is not set). Times depend on the machine and are only printed, with a
// bound that a call over all entries would miss by far.
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "check.hpp"
#include "master/directory_index.hpp"

using namespace kvstore;

namespace {

constexpr uint64_t kBatch = 16384;  // entries of the largest record
constexpr uint32_t kSegments = 8;
constexpr double kBoundMs = 100;  // 20 ms is what we want; other programs run beside the tests

uint64_t entries_wanted() {
  const char* said = std::getenv("KVSTORE_STALL_ENTRIES");
  return said != nullptr ? std::strtoull(said, nullptr, 10) : 1000000;
}

double thread_ms() {  // of CPU: what waits for a core is no doing of the index
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

struct Longest {
  std::map<std::string, std::pair<double, uint64_t>> of;  // longest, calls

  template <typename Work>
  auto timed(const char* what, Work&& work) {
    struct Record {
      std::pair<double, uint64_t>& to;
      double begin = thread_ms();
      ~Record() { to.first = std::max(to.first, thread_ms() - begin), ++to.second; }
    } record{of[what]};
    return work();
  }
};

Fingerprint fp_of(uint64_t i) { return {mix64(i), mix64(i + (uint64_t{1} << 40))}; }

wire::Writer adds(uint64_t from, uint64_t count) {
  wire::Writer out;
  out.u8(1).zeros(3).u32(static_cast<uint32_t>(count)).zeros(8);
  for (uint64_t i = from; i < from + count; ++i) out.u64(fp_of(i).lo).u64(fp_of(i).hi);
  for (uint64_t i = 0; i < count; ++i) out.u32(1000);
  return out;
}

wire::Writer query(std::mt19937_64& rng, uint64_t entries) {
  wire::Writer out;
  out.zeros(8).u32(128).u32(1);
  for (int i = 0; i < 128; ++i) {
    const Fingerprint f = fp_of(rng() % entries);
    out.u64(f.lo).u64(f.hi);
  }
  return out;
}

}  // namespace

TEST(no_call_takes_long_however_many_entries_there_are) {
  const uint64_t wanted = entries_wanted();
  std::mt19937_64 rng(1);
  DirectoryIndex index;
  Longest longest;
  double most_bytes = 0;
  for (uint64_t from = 0, turn = 0; from < wanted; from += kBatch, ++turn) {
    const uint64_t count = std::min(kBatch, wanted - from);
    const wire::Writer groups = adds(from, count);
    const auto segment = static_cast<uint32_t>(turn % kSegments);
    longest.timed("apply, growing", [&] { return index.apply(segment, groups.data(), groups.size()); });
    if (from > 100000) {
      const auto entries = static_cast<double>(index.entry_count());
      most_bytes = std::max(most_bytes, static_cast<double>(index.memory_bytes()) / entries);
    }
    const wire::Writer request = query(rng, from + count);
    longest.timed("exists of 128", [&] { return index.exists(request.data(), request.size()); });
  }
  CHECK_EQ(index.entry_count(), wanted);

  // An inventory of a segment, without its first batch, while a snapshot of another one is taken.
  DirectoryIndex::Snapshot snapshot(index, 1, kBatch);
  longest.timed("begin_inventory", [&] { index.begin_inventory(0); });
  uint64_t left_out = 0;
  for (uint64_t from = 0, turn = 0; from < wanted; from += kBatch, ++turn) {
    longest.timed("snapshot, a chunk", [&] { return snapshot.next(); });
    if (turn % kSegments != 0) continue;
    const uint64_t count = std::min(kBatch, wanted - from);
    if (turn == 0) {
      left_out = count;
      continue;
    }
    const wire::Writer groups = adds(from, count);
    longest.timed("apply, inventory", [&] { return index.apply(0, groups.data(), groups.size()); });
  }
  longest.timed("end_inventory", [&] { index.end_inventory(0); });
  uint64_t swept = 0;
  while (const uint64_t slice = longest.timed("sweep of 2000", [&] { return index.sweep(2000); }))
    swept += slice;
  CHECK_EQ(swept, left_out);

  for (uint32_t segment = 0; segment < kSegments; ++segment) {
    longest.timed("set_serving", [&] { index.set_serving(segment, false); });
    longest.timed("segment_usage", [&] { return index.segment_usage(segment); });
    longest.timed("drop_segment", [&] { index.drop_segment(segment); });
  }
  while (longest.timed("sweep of 2000", [&] { return index.sweep(2000); }) > 0) {
  }
  CHECK_EQ(index.entry_count(), uint64_t{0});

  std::fprintf(stderr, "%llu entries, at most %.1f bytes each; longest CPU time of a call:\n",
               static_cast<unsigned long long>(wanted), most_bytes);
  for (const auto& [what, took] : longest.of) {
    std::fprintf(stderr, "  %-20s %9.3f ms of %llu calls\n", what.c_str(), took.first,
                 static_cast<unsigned long long>(took.second));
    CHECK(took.first < kBoundMs);
  }
  CHECK(most_bytes <= 72);  // a million: the last chunk counts; 64 from ten millions on
}

TEST_MAIN()
