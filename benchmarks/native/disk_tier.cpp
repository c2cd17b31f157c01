// What the disk tier moves beside the disk by itself, in one process: pages written and read by the tier, and the same
// bytes by plain calls of the same file and number of threads. Prints lines of `name value`. Driven by
// `python -m benchmarks.disk_tier`.
//
//   disk_tier_benchmark FILE PAGE_BYTES PAGES THREADS SEED
#include "segment/disk/disk_tier.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/digest.hpp"

using namespace kvstore;

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kBlock = DiskIo::kBlockBytes;
constexpr uint64_t kWriteBytes = 4u << 20;
constexpr size_t kBatch = 32;

double cpu_s() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Measures `work`, which moves so many bytes.
template <typename Work>
void measure(const char* name, uint64_t bytes, Work&& work) {
  const double cpu_before = cpu_s();
  const auto began = Clock::now();
  work();
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::printf("%s_gb_per_s %.4f\n%s_cpu_s_per_gb %.4f\n", name, static_cast<double>(bytes) / 1e9 / seconds,
              name, (cpu_s() - cpu_before) * 1e9 / static_cast<double>(bytes));
  std::fflush(stdout);
}

struct Aligned {
  explicit Aligned(uint64_t size) : data(static_cast<uint8_t*>(std::aligned_alloc(kBlock, size))) {
    std::memset(data, 0x5a, size);
  }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  uint8_t* data;
};

// Each page is the same bytes: what is measured does not depend on them.
class OnePage final : public DiskTierHooks {
 public:
  explicit OnePage(uint32_t length) : bytes_(length) {
    std::mt19937_64 random(1);
    for (uint8_t& byte : bytes_) byte = static_cast<uint8_t>(random());
    digest_ = crc32c(0, bytes_.data(), bytes_.size());
  }
  uint64_t copy_out(const Key&, const Fingerprint&, uint8_t* to, uint64_t room,
                    DiskRecordHeader& header) override {
    if (bytes_.size() > room) return bytes_.size();
    std::memcpy(to, bytes_.data(), bytes_.size());
    header.digest_alg = kDigestCrc32c;
    header.length = static_cast<uint32_t>(bytes_.size());
    header.digest = digest_;
    return bytes_.size();
  }
  void dropped(std::vector<JournalEntry>) noexcept override {}

 private:
  std::vector<uint8_t> bytes_;
  uint32_t digest_;
};

DiskTier::Page page(uint64_t i) {
  DiskTier::Page p{};
  p.key.ns = {'b', 'e', 'n', 'c', 'h'};
  p.key.shard = kWholeShard;
  std::memcpy(p.key.hash.data(), &i, sizeof(i));
  p.fp = fingerprint(fingerprint_salt(p.key.ns, 0, kWholeShard), p.key.hash.data());
  return p;
}

uint64_t stat(DiskTier& tier, const char* name) {
  std::map<std::string, uint64_t> all;
  tier.stats(all);
  return all.at(name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: disk_tier_benchmark FILE PAGE_BYTES PAGES THREADS SEED\n");
    return 2;
  }
  const auto page_bytes = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  const uint64_t pages = std::strtoull(argv[3], nullptr, 10);
  const auto threads = static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10));
  std::mt19937_64 random(std::strtoull(argv[5], nullptr, 10));
  DiskTierOptions options;
  options.path = argv[1];
  const uint64_t record = (page_bytes + sizeof(DiskRecordHeader) + kBlock - 1) / kBlock * kBlock;
  options.capacity_bytes = record * pages * 5 / 4 + (256u << 20);
  options.admit_uses = 1;
  options.read_threads = threads;
  options.wait_ms = 60'000;
  const uint64_t bytes = uint64_t{page_bytes} * pages;
  const uint64_t plain_bytes = record * pages / kWriteBytes * kWriteBytes;
  std::vector<uint64_t> order(pages);
  for (uint64_t i = 0; i < pages; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  try {
    {
      const auto io = open_disk_file(options.path, options.capacity_bytes);
      std::printf("direct %d\n", io->is_direct());
      const Aligned from(kWriteBytes);
      // Twice: blocks that were never written cost the file system more.
      for (uint64_t at = 0; at < plain_bytes; at += kWriteBytes) io->write(at, from.data, kWriteBytes);
      measure("plain_write", plain_bytes, [&] {
        for (uint64_t at = 0; at < plain_bytes; at += kWriteBytes)
          if (io->write(at, from.data, kWriteBytes) != 0) std::abort();
      });
      const uint64_t reads = plain_bytes / record;
      measure("plain_read", reads * record, [&] {
        std::atomic<uint64_t> next{0};
        std::vector<std::thread> readers;
        for (uint32_t t = 0; t < threads; ++t)
          readers.emplace_back([&] {
            const Aligned to(record);
            for (uint64_t i; (i = next.fetch_add(1)) < reads;)
              if (io->read(order[i] % reads * record, to.data, record) != 0) std::abort();
          });
        for (std::thread& reader : readers) reader.join();
      });
    }
    OnePage hooks(page_bytes);
    {
      DiskTierOptions fresh = options;
      fresh.empty = true;
      DiskTier tier(fresh, hooks);
      tier.start();
      measure("tier_write", bytes, [&] {
        for (uint64_t i = 0; i < pages; ++i) {
          tier.note({page(i)});
          while (i % 1024 == 1023 && stat(tier, "disk_queued_pages") > 1024)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        while (stat(tier, "disk_written_pages") < pages)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
      static const std::atomic<bool> never{false};
      uint64_t missed = 0;
      measure("tier_read", bytes, [&] {
        for (uint64_t first = 0; first < pages; first += kBatch) {
          std::vector<DiskTier::Page> batch;
          for (uint64_t i = first; i < std::min(pages, first + kBatch); ++i) batch.push_back(page(order[i]));
          for (const DiskPage& read : tier.read(batch, Clock::now() + std::chrono::seconds(60), never))
            missed += read.buffer == nullptr;
        }
      });
      std::printf("missed %llu\n", static_cast<unsigned long long>(missed));
    }
    DiskTier again(options, hooks);
    std::map<std::string, uint64_t> stats;
    again.stats(stats);
    std::printf("recovered %llu\nrecovery_ms %llu\n",
                static_cast<unsigned long long>(stats.at("disk_recovered_pages")),
                static_cast<unsigned long long>(stats.at("disk_recovery_ms")));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "disk_tier_benchmark: %s\n", e.what());
    return 1;
  }
}
