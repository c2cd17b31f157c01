#include "segment/pool_scan.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "base/digest.hpp"
#include "segment/extent_allocator.hpp"

namespace kvstore {
namespace {

constexpr uint32_t kSlotsAtOnce = 64;
constexpr uint64_t kBytesAtOnce = 4u << 20;  // between two looks at whether it is called off
constexpr size_t kObjectsAtOnce = 16384;     // the same
constexpr unsigned kThreadsMax = 8;

struct OfFingerprint {
  size_t operator()(const Fingerprint& fp) const { return static_cast<size_t>(fp.lo ^ fp.hi); }
};
using Fingerprints = std::unordered_set<Fingerprint, OfFingerprint>;
using Numbers = std::unordered_map<Fingerprint, uint64_t, OfFingerprint>;

// By fingerprint the number of the newest REMOVE that no ADD follows.
Numbers removed_by(const ScanOptions& options) {
  Numbers removed;
  uint64_t seq = options.last_seq - options.newest_entries.size();
  for (const JournalEntry& entry : options.newest_entries) {
    ++seq;
    if (entry.op == JournalOp::kRemove)
      removed[entry.fp] = seq;
    else
      removed.erase(entry.fp);
  }
  return removed;
}

void end_if_cancelled(const PoolProgress* progress) {
  if (progress != nullptr && progress->cancelled.load(std::memory_order_relaxed))
    throw std::system_error(ECANCELED, std::generic_category(), "scanning the memory pool");
}

// What one thread has found.
struct Part {
  std::vector<PoolScan::Object> objects, gone;
  std::array<uint64_t, PoolScan::kReasons> dropped{};
  uint64_t scanned_bytes = 0;
  bool needs_inventory = false;
};

class Scanner {
 public:
  Scanner(const uint8_t* base, const ScanOptions& options, const Numbers& removed, PoolProgress& progress,
          Part& part)
      : base_(base), options_(options), removed_(removed), progress_(progress), part_(part) {}

  void look_at(uint32_t slot, const SlotHeader& h) {
    const uint64_t generation = h.generation.load(std::memory_order_relaxed);
    if (h.magic != SlotHeader::kMagic || h.version != SlotHeader::kVersion) return damaged();
    if (generation % 2 != 0) {
      // Whichever change it was: one that took the object away has left its key as it was.
      const bool condemned = h.state == SlotState::kQuarantined;
      return gone(condemned ? PoolScan::kQuarantined : PoolScan::kChanging, object_of(slot, h));
    }
    if (h.check != h.check_at(generation)) return damaged();
    switch (h.state) {
      case SlotState::kFree:
        return;
      case SlotState::kWriting:
        ++part_.dropped[PoolScan::kWriting];
        return;
      case SlotState::kQuarantined:
        return gone(PoolScan::kQuarantined, object_of(slot, h));
      case SlotState::kSealed:
        return look_at_sealed(slot, h);
    }
    damaged();
  }

 private:
  // Whatever it held, the directory can't be told which.
  void damaged() {
    ++part_.dropped[PoolScan::kDamaged];
    part_.needs_inventory = true;
  }

  void gone(PoolScan::Reason reason, const PoolScan::Object& object) {
    ++part_.dropped[reason];
    part_.gone.push_back(object);
  }

  PoolScan::Object object_of(uint32_t slot, const SlotHeader& h) {
    if (!salted_ || h.ns != ns_ || h.pool != pool_ || h.shard != shard_) {
      salt_ = fingerprint_salt(h.ns, h.pool, h.shard);
      ns_ = h.ns;
      pool_ = h.pool;
      shard_ = h.shard;
      salted_ = true;
    }
    return {slot, h.seq, fingerprint(salt_, h.hash.data()), h.ns, h.length};
  }

  void look_at_sealed(uint32_t slot, const SlotHeader& h) {
    const PoolScan::Object object = object_of(slot, h);
    const auto removed = removed_.find(object.fp);
    const bool about_to_go = removed != removed_.end() && h.seq <= removed->second;
    if (h.removed != 0 || about_to_go) return gone(PoolScan::kRemoved, object);
    const uint64_t at = h.offset - options_.data_offset;
    if (h.offset < options_.data_offset || at % ExtentAllocator::kUnitBytes != 0 ||
        at > options_.capacity_bytes || h.stored_bytes() > options_.capacity_bytes - at)
      return gone(PoolScan::kMisplaced, object);
    if (options_.verify_digests && !has_its_bytes(h)) return gone(PoolScan::kBadBytes, object);
    part_.objects.push_back(object);
  }

  bool has_its_bytes(const SlotHeader& h) {
    uint32_t digest = 0;
    for (uint64_t at = 0; at < h.length; at += kBytesAtOnce) {
      if (progress_.cancelled.load(std::memory_order_relaxed)) return true;  // the scan has no result
      const uint64_t bytes = std::min<uint64_t>(kBytesAtOnce, h.length - at);
      digest = crc32c(digest, base_ + h.offset + at, bytes);
      part_.scanned_bytes += bytes;
      progress_.scanned_bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
    return h.digest_alg == kDigestCrc32c && digest == h.digest;
  }

  const uint8_t* const base_;
  const ScanOptions& options_;
  const Numbers& removed_;
  PoolProgress& progress_;
  Part& part_;
  bool salted_ = false;  // salt_ is that of the three before it
  NamespaceId ns_{};
  uint16_t pool_ = 0;
  Shard shard_{};
  Fingerprint salt_;
};

Part scan_all(const uint8_t* base, const std::vector<ScannedChunk>& chunks, const ScanOptions& options,
              PoolProgress& progress) {
  std::vector<std::pair<const ScannedChunk*, uint32_t>> work;  // a chunk, and where the piece begins
  for (const ScannedChunk& chunk : chunks)
    for (uint32_t first = 0; first < chunk.slot_count; first += kSlotsAtOnce)
      work.emplace_back(&chunk, first);
  const Numbers removed = removed_by(options);
  const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax);
  std::vector<Part> parts(std::clamp<size_t>(options.threads == 0 ? cores : options.threads, 1,
                                             std::max<size_t>(work.size(), 1)));
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto run = [&](Part& part) {
    try {
      Scanner scanner(base, options, removed, progress, part);
      for (size_t at = next.fetch_add(1); at < work.size() && !progress.cancelled.load() && !failed.load();
           at = next.fetch_add(1)) {
        const auto [chunk, first] = work[at];
        const uint32_t end = std::min(first + kSlotsAtOnce, chunk->slot_count);
        for (uint32_t i = first; i < end; ++i) scanner.look_at(chunk->first_slot + i, chunk->headers[i]);
      }
    } catch (const std::bad_alloc&) {
      failed.store(true);
    }
  };
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < parts.size(); ++i) threads.emplace_back(run, std::ref(parts[i]));
  } catch (const std::exception&) {  // fewer threads take longer
  }
  run(parts[0]);
  for (std::thread& thread : threads) thread.join();
  if (failed.load()) throw std::bad_alloc();
  end_if_cancelled(&progress);
  Part all = std::move(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    const Part& part = parts[i];
    all.objects.insert(all.objects.end(), part.objects.begin(), part.objects.end());
    all.gone.insert(all.gone.end(), part.gone.begin(), part.gone.end());
    for (size_t reason = 0; reason < all.dropped.size(); ++reason)
      all.dropped[reason] += part.dropped[reason];
    all.scanned_bytes += part.scanned_bytes;
    all.needs_inventory |= part.needs_inventory;
  }
  return all;
}

// The oldest first. Two of one fingerprint can't be, and of them the newer one stays.
Fingerprints put_in_order(Part& part, const PoolProgress* progress) {
  std::stable_sort(part.objects.begin(), part.objects.end(),
                   [](const PoolScan::Object& a, const PoolScan::Object& b) { return a.seq < b.seq; });
  Fingerprints there;
  there.reserve(part.objects.size());
  std::vector<PoolScan::Object> kept;
  kept.reserve(part.objects.size());
  for (size_t i = part.objects.size(); i-- > 0;) {
    if (i % kObjectsAtOnce == 0) end_if_cancelled(progress);
    if (there.insert(part.objects[i].fp).second)
      kept.push_back(part.objects[i]);
    else
      ++part.dropped[PoolScan::kRemoved];
  }
  std::reverse(kept.begin(), kept.end());
  part.objects = std::move(kept);
  return there;
}

}  // namespace

const char* PoolScan::name(Reason reason) {
  constexpr const char* kNames[] = {"writing", "changing",  "removed",  "quarantined",
                                    "damaged", "misplaced", "bad_bytes"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kReasons);
  return kNames[reason];
}

PoolScan scan_pool(const uint8_t* base, const std::vector<ScannedChunk>& chunks, const ScanOptions& options) {
  const auto began = std::chrono::steady_clock::now();
  PoolProgress unwatched;
  Part all = scan_all(base, chunks, options, options.progress == nullptr ? unwatched : *options.progress);
  const Fingerprints there = put_in_order(all, options.progress);
  PoolScan scan;
  for (const PoolScan::Object& gone : all.gone)
    if (there.count(gone.fp) == 0) scan.removals.push_back({gone.fp, gone.ns, 0, JournalOp::kRemove});
  scan.objects = std::move(all.objects);
  for (const PoolScan::Object& object : scan.objects) scan.object_bytes += object.length;
  scan.needs_inventory = all.needs_inventory;
  scan.dropped = all.dropped;
  scan.scanned_bytes = all.scanned_bytes;
  scan.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return scan;
}

}  // namespace kvstore
