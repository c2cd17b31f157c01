// Life of the tier, what it is told and asked; its threads are in disk_tier_threads.cpp.
#include "segment/disk/disk_tier.hpp"

#include <algorithm>

#include "segment/disk/disk_read_batch.hpp"

namespace kvstore {
namespace {

// Pages are taken to be no smaller on the whole when their number is guessed.
constexpr uint64_t kPageBytesGuessed = 64u << 10;
constexpr size_t kWipesMax = 65536;    // that wait for the writer
constexpr uint64_t kReadsMax = 65536;  // that wait for a thread
// How often a wait looks whether it was cancelled.
constexpr auto kCancelPoll = std::chrono::milliseconds(250);

}  // namespace

DiskTier::DiskTier(const DiskTierOptions& options, DiskTierHooks& hooks)
    : options_(options),
      hooks_(hooks),
      io_(options.open(options.path, options.capacity_bytes), std::chrono::milliseconds(options.slow_ms)),
      regions_(io_, options.capacity_bytes, options.segment_id),
      admission_(options.capacity_bytes / kPageBytesGuessed),
      read_space_(std::make_shared<DiskBufferSpace>(options.read_bytes_max)),
      write_buffer_(DiskBuffer::make(std::make_shared<DiskBufferSpace>(regions_.layout().region_bytes),
                                     regions_.layout().region_bytes)),
      index_(regions_.layout().region_count) {
  const auto began = Clock::now();
  recover();
  recovery_ms_ = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began).count());
}

DiskTier::~DiskTier() { close(); }

void DiskTier::recover() {
  const MutexLock lock(mutex_);
  struct Found {
    uint32_t region;
    DiskRegions::Scanned content;
  };
  std::vector<Found> found;
  if (!options_.empty && regions_.load()) {
    for (uint32_t region = 0; region < region_count(); ++region) {
      auto content = regions_.scan(region);
      if (!content) continue;
      regions_.seen(content->seq);
      if (!content->records.empty()) found.push_back({region, std::move(*content)});
    }
  } else {
    (void)regions_.format();  // or else by the first region that is opened
  }
  // In the order in which they were filled: the newest place of a page is the one that counts.
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.content.seq < b.content.seq; });
  std::vector<bool> used(region_count());
  for (const Found& f : found) {
    used[f.region] = true;
    for (const DiskRecordHeader& r : f.content.records)
      index_.insert(r.fp(), r.ns,
                    {f.region, r.block, r.length, r.digest, r.seq, static_cast<uint32_t>(r.blocks())});
    index_.close(f.region);
  }
  for (uint32_t region = region_count(); region-- > 0;)
    if (!used[region]) index_.give_free(region);
  recovered_pages_ = index_.size();
}

void DiskTier::start() {
  const MutexLock lock(join_mutex_);
  threads_.emplace_back([this] { run_writer(); });
  for (uint32_t i = 0; i < std::max(options_.read_threads, 1u); ++i)
    threads_.emplace_back([this] { run_reader(); });
}

void DiskTier::close() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  write_wanted_.notify_all();
  read_wanted_.notify_all();
  const MutexLock joining(join_mutex_);
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
  threads_.clear();
  const MutexLock lock(mutex_);
  for (Read& read : reads_) read.batch->done(read.entry, {});
  reads_.clear();
}

void DiskTier::note(const std::vector<Page>& pages, bool wanted) {
  std::vector<const Page*> worth;
  for (const Page& page : pages)
    if (admission_.note(page.fp) >= options_.admit_uses || wanted) worth.push_back(&page);
  if (worth.empty()) return;
  uint64_t shed = 0;
  bool queued = false;
  {
    const MutexLock lock(mutex_);
    if (closing_) return;
    for (const Page* page : worth) {
      if (index_.has(page->fp) || pending_.count(page->fp) != 0 || queued_.count(page->fp) != 0) continue;
      if (queue_.size() >= options_.queued_pages_max) {
        ++shed;
        continue;
      }
      queued_.insert(page->fp);
      queue_.push_back(*page);
      queued = true;
    }
  }
  if (queued) write_wanted_.notify_one();
  shed_writes_.fetch_add(shed, std::memory_order_relaxed);
}

bool DiskTier::pin(const Fingerprint& fp, uint64_t until_ms) {
  if (!io_.reads.is_well(Clock::now())) return false;
  const MutexLock lock(mutex_);
  DiskIndex::Entry* const entry = index_.find(fp);
  if (entry == nullptr) return false;
  entry->pinned_until_ms = std::max(entry->pinned_until_ms, until_ms);
  return true;
}

std::vector<uint32_t> DiskTier::lengths(const std::vector<Page>& pages) {
  std::vector<uint32_t> out(pages.size());
  if (!io_.reads.is_well(Clock::now())) return out;
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < pages.size(); ++i)
    if (const DiskIndex::Entry* const entry = index_.find(pages[i].fp)) out[i] = entry->place.length;
  return out;
}

std::vector<DiskPage> DiskTier::read(const std::vector<Page>& pages, Clock::time_point deadline,
                                     const std::atomic<bool>& cancelled) {
  const auto batch = std::make_shared<DiskReadBatch>(pages.size());
  uint64_t shed = 0;
  {
    const bool well = io_.reads.is_well(Clock::now());
    const MutexLock lock(mutex_);
    for (uint32_t i = 0; i < pages.size(); ++i) {
      const DiskIndex::Entry* const entry = index_.find(pages[i].fp);
      std::shared_ptr<DiskBuffer> buffer;
      if (entry != nullptr && well && !closing_ && reads_.size() < kReadsMax)
        buffer = DiskBuffer::make(read_space_, entry->place.blocks * DiskIo::kBlockBytes);
      if (buffer == nullptr) {
        shed += entry != nullptr;
        batch->done(i, {});
        continue;
      }
      reads_.push_back({batch, i, pages[i], entry->place, std::move(buffer)});
    }
  }
  read_wanted_.notify_all();
  shed_reads_.fetch_add(shed, std::memory_order_relaxed);
  std::vector<DiskPage> read = batch->wait(deadline, kCancelPoll, cancelled);
  late_.fetch_add(batch->given_up(), std::memory_order_relaxed);
  return read;
}

bool DiskTier::stays(const Fingerprint& fp) {
  const MutexLock lock(mutex_);
  if (index_.has(fp)) return true;
  const auto it = pending_.find(fp);
  return it != pending_.end() && !it->second.cancelled;
}

bool DiskTier::forget(const Fingerprint& fp) {
  const MutexLock lock(mutex_);
  const auto it = pending_.find(fp);
  if (it != pending_.end()) it->second.cancelled = true;
  return erase(fp);
}

bool DiskTier::erase(const Fingerprint& fp) {
  const DiskIndex::Entry* const entry = index_.find(fp);
  if (entry == nullptr) return false;
  if (wipes_.size() < kWipesMax)
    wipes_.push_back(entry->place);
  else
    lost_wipes_.fetch_add(1, std::memory_order_relaxed);
  index_.erase(fp);
  write_wanted_.notify_one();
  return true;
}

void DiskTier::forget_other(const Fingerprint& fp, uint32_t length, uint32_t digest) {
  const MutexLock lock(mutex_);
  const DiskIndex::Entry* const entry = index_.find(fp);
  if (entry != nullptr && (entry->place.length != length || entry->place.digest != digest)) erase(fp);
  const auto it = pending_.find(fp);
  if (it != pending_.end() && it->second.copied &&
      (it->second.length != length || it->second.digest != digest))
    it->second.cancelled = true;
}

void DiskTier::list(uint32_t region, std::vector<JournalEntry>& entries) {
  const MutexLock lock(mutex_);
  index_.list(region, entries);
}

std::vector<NamespaceId> DiskTier::namespaces() {
  const MutexLock lock(mutex_);
  return index_.namespaces();
}

uint64_t DiskTier::used_bytes() {
  const MutexLock lock(mutex_);
  return index_.bytes();
}

void DiskTier::stats(std::map<std::string, uint64_t>& out) {
  const auto now = Clock::now();
  {
    const MutexLock lock(mutex_);
    out["disk_pages"] = index_.size();
    out["disk_used_bytes"] = index_.bytes();
    out["disk_queued_pages"] = queue_.size();
  }
  out["disk_capacity_bytes"] = capacity_bytes();
  out["disk_read_bytes_in_flight"] = read_space_->used();
  out["disk_direct"] = io_.is_direct();
  out["disk_preallocated"] = io_.is_preallocated();
  out["disk_read_alarm"] = static_cast<uint64_t>(io_.reads.alarm(now));
  out["disk_write_alarm"] = static_cast<uint64_t>(io_.writes.alarm(now));
  out["disk_alarms"] = io_.reads.alarms() + io_.writes.alarms();
  out["disk_recovered_pages"] = recovered_pages_;
  out["disk_recovery_ms"] = recovery_ms_;
  const auto count = [&out](const char* name, const std::atomic<uint64_t>& value) {
    out[name] = value.load(std::memory_order_relaxed);
  };
  count("disk_written_pages", written_pages_);
  count("disk_written_bytes", written_bytes_);
  count("disk_hits", hits_);
  count("disk_hit_bytes", hit_bytes_);
  count("disk_evicted_pages", evicted_pages_);
  count("disk_corrupt_pages", corrupt_pages_);
  count("disk_shed_writes", shed_writes_);
  count("disk_shed_reads", shed_reads_);
  count("disk_late_reads", late_);
  count("disk_gone_before_write", gone_);
  count("disk_too_large", too_large_);
  count("disk_lost_wipes", lost_wipes_);
  count("disk_read_errors", io_.read_errors);
  count("disk_write_errors", io_.write_errors);
}

}  // namespace kvstore
