// Pages on disk, below those in memory: one thread writes what is offered, some read what is asked for. Nobody who holds
// a lock of the store waits for the disk, and nobody who reads memory.
//
// A page is written while it still lies in memory, when it was used often enough to be worth it; when memory evicts it
// later it `stays` here, and nothing has to be done. Regions are filled one after the other and emptied whole
// (disk_format.hpp). Thread-safe. Lock order: the store's main mutex, then the tier's; hooks are called with neither.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.hpp"
#include "segment/disk/disk_admission.hpp"
#include "segment/disk/disk_buffer.hpp"
#include "segment/disk/disk_index.hpp"
#include "segment/disk/disk_regions.hpp"
#include "segment/disk/disk_watch.hpp"

namespace kvstore {

struct DiskTierOptions {
  std::string path;  // empty: there is no tier
  uint64_t capacity_bytes = 0;
  std::array<uint8_t, 16> segment_id{};
  bool empty = false;                      // forget what an earlier process has left
  uint32_t read_threads = 4;               // and as many reads under way
  uint32_t admit_uses = 2;                 // a page is written when it was seen so often; 1: every page
  uint32_t promote_hits = 2;               // a page is read into memory when it was read from disk so often
  uint32_t wait_ms = 1000;                 // for a read, where the client says nothing
  uint32_t slow_ms = 1000;                 // a call that takes longer raises the alarm
  uint64_t queued_pages_max = 65536;       // that wait to be written
  uint64_t read_bytes_max = 256ull << 20;  // of reads under way, and of pages on their way to clients
  std::function<std::unique_ptr<DiskIo>(const std::string&, uint64_t)> open = open_disk_file;
};

// A page as it was read. Its bytes are right.
struct DiskPage {
  std::shared_ptr<DiskBuffer> buffer;  // null: it is not there, or did not come in time
  uint32_t hits = 0;                   // how often it was read since it was written, this time included

  const DiskRecordHeader& header() const {
    return *reinterpret_cast<const DiskRecordHeader*>(buffer->data());
  }
  const uint8_t* data() const { return buffer->data() + sizeof(DiskRecordHeader); }
  const uint8_t* text() const { return data() + header().length; }
};

// What the tier asks of the store. From the tier's threads.
class DiskTierHooks {
 public:
  virtual ~DiskTierHooks() = default;
  // Copies payload and text of a page that is in memory to `to`, and fills the header's length, digest, depth and
  // text_bytes in. The bytes that this takes; more than `room`: nothing was copied; 0: it is not there.
  virtual uint64_t copy_out(const Key& key, const Fingerprint& fp, uint8_t* to, uint64_t room,
                            DiskRecordHeader& header) = 0;
  // They are not on disk any more, or not after all: REMOVEs, for those that are not in memory either.
  virtual void dropped(std::vector<JournalEntry> pages) noexcept = 0;
};

class DiskReadBatch;

class DiskTier {
 public:
  using Clock = std::chrono::steady_clock;

  // Reads the index of an earlier process back. Throws what open_disk_file and disk_layout throw.
  DiskTier(const DiskTierOptions& options, DiskTierHooks& hooks);
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  void start();
  // Ends the threads, when the calls that they are in have come back. Idempotent.
  void close();

  // ---- any thread
  struct Page {
    Key key;
    Fingerprint fp;
  };
  // The pages were put or used: those that were seen often enough are queued to be written. `wanted`: all of them are.
  void note(const std::vector<Page>& pages, bool wanted = false);
  // Whether exists can promise it; a pin keeps it from eviction until then.
  bool pin(const Fingerprint& fp, uint64_t until_ms);
  // The lengths of those that are here; 0 for others, and for all while nothing is read.
  std::vector<uint32_t> lengths(const std::vector<Page>& pages);
  // Reads what it can until the deadline, or until `cancelled` is seen, a quarter of a second later at most.
  std::vector<DiskPage> read(const std::vector<Page>& pages, Clock::time_point deadline,
                             const std::atomic<bool>& cancelled);

  // ---- under the store's main mutex, or before anybody else knows the tier
  // It is on disk, or on its way there: it is not lost when memory evicts it.
  bool stays(const Fingerprint& fp);
  // Not any more, nor for the next process, if this one does not end before it has written so. True: it was there.
  bool forget(const Fingerprint& fp);
  // Of a page with other bytes that was just put.
  void forget_other(const Fingerprint& fp, uint32_t length, uint32_t digest);

  // ---- housekeeping
  uint32_t region_count() const { return regions_.layout().region_count; }
  void list(uint32_t region, std::vector<JournalEntry>& entries);
  std::vector<NamespaceId> namespaces();
  // How many pages it began with, and how long reading the index back took.
  uint64_t recovered_pages() const { return recovered_pages_; }
  const DiskTierOptions& options() const { return options_; }
  uint64_t capacity_bytes() const { return uint64_t{region_count()} * regions_.layout().region_bytes; }
  uint64_t used_bytes();
  uint64_t shed_pages() const { return shed_writes_.load() + shed_reads_.load(); }
  void stats(std::map<std::string, uint64_t>& out);

 private:
  struct Pending {
    uint32_t length = 0, digest = 0;
    bool copied = false, cancelled = false;
  };
  struct Read {
    std::shared_ptr<DiskReadBatch> batch;
    uint32_t entry;
    Page page;
    DiskPlace place;
    std::shared_ptr<DiskBuffer> buffer;
  };
  struct Written {
    Page page;
    DiskRecordHeader header;
  };

  void recover();
  void run_writer();
  void run_reader();
  void write_pages(const std::vector<Page>& pages);
  // Copies pages from `next` on into the buffer; the bytes of them all.
  uint64_t gather(const std::vector<Page>& pages, size_t& next, std::vector<Written>& gathered);
  bool ensure_region();
  bool open_region();
  void close_region();
  bool erase(const Fingerprint& fp) REQUIRES(mutex_);
  void probe_write();
  void wipe(const std::vector<DiskPlace>& places);
  void publish(const std::vector<Written>& written, bool ok);
  void unpend(const Page& page, std::vector<JournalEntry>& lost) REQUIRES(mutex_);
  void shed(const std::vector<Page>& pages, size_t first);
  void finish_read(Read& read);
  bool is_intact(const Read& read) const;

  const DiskTierOptions options_;
  DiskTierHooks& hooks_;
  WatchedDisk io_;
  DiskRegions regions_;  // the writer's alone once it runs
  DiskAdmission admission_;
  const std::shared_ptr<DiskBufferSpace> read_space_;
  const std::shared_ptr<DiskBuffer> write_buffer_;  // the writer's

  Mutex mutex_;
  DiskIndex index_ GUARDED_BY(mutex_);
  std::unordered_map<Fingerprint, Pending, FingerprintHash> pending_ GUARDED_BY(mutex_);
  std::deque<Page> queue_ GUARDED_BY(mutex_);
  std::unordered_set<Fingerprint, FingerprintHash> queued_ GUARDED_BY(mutex_);
  std::deque<Read> reads_ GUARDED_BY(mutex_);
  std::vector<DiskPlace> wipes_ GUARDED_BY(mutex_);  // of records that a restart must not find
  bool closing_ GUARDED_BY(mutex_) = false;
  CondVar write_wanted_, read_wanted_;  // with mutex_

  Mutex join_mutex_;
  std::vector<std::thread> threads_ GUARDED_BY(join_mutex_);
  uint64_t recovered_pages_ = 0, recovery_ms_ = 0;

  std::atomic<uint64_t> written_pages_{0}, written_bytes_{0}, hits_{0}, hit_bytes_{0}, late_{0},
      corrupt_pages_{0}, evicted_pages_{0}, shed_writes_{0}, shed_reads_{0}, gone_{0}, too_large_{0},
      lost_wipes_{0};
};

}  // namespace kvstore
