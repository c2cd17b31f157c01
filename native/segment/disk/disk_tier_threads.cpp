// What the tier's threads do: one writes, the others read.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/digest.hpp"
#include "segment/disk/disk_read_batch.hpp"
#include "segment/disk/disk_tier.hpp"

namespace kvstore {
namespace {

constexpr uint64_t kBlock = DiskIo::kBlockBytes;
constexpr size_t kTakenMax = 256;           // pages that the writer takes off the queue at once
constexpr uint64_t kWriteBytes = 4u << 20;  // of one write, where pages are smaller
constexpr auto kIdleLook = DiskHealth::kProbeEvery;
// Regions that are kept free ahead of need, in parts of all.
constexpr size_t kFreeShare = 64;

uint64_t now_ms() {
  const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(since_boot).count()) + 1;
}

}  // namespace

// ---- writing

void DiskTier::run_writer() {
  for (;;) {
    std::vector<Page> pages;
    std::vector<DiskPlace> wipes;
    {
      const MutexLock lock(mutex_);
      const auto look = Clock::now() + kIdleLook;
      while (queue_.empty() && wipes_.empty() && !closing_ &&
             write_wanted_.wait_until(mutex_, look) == std::cv_status::no_timeout) {
      }
      if (closing_) break;
      wipes.swap(wipes_);
      const size_t count = std::min(queue_.size(), kTakenMax);
      pages.assign(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(count));
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(count));
    }
    wipe(wipes);
    try {
      if (!pages.empty())
        write_pages(pages);
      else if (!io_.writes.is_well(Clock::now()) && io_.writes.allows(Clock::now()))
        probe_write();
    } catch (const std::exception&) {  // out of memory
      shed_writes_.fetch_add(1, std::memory_order_relaxed);
    }
    const MutexLock lock(mutex_);
    for (const Page& page : pages) queued_.erase(page.fp);
  }
  // So that the next process needs not walk through it.
  if (regions_.is_open() && io_.writes.is_well(Clock::now())) (void)regions_.close();
}

void DiskTier::wipe(const std::vector<DiskPlace>& places) {
  for (const DiskPlace& place : places)
    if (!io_.writes.allows(Clock::now()) || regions_.wipe(place.region, place.seq, place.block) != 0)
      lost_wipes_.fetch_add(1, std::memory_order_relaxed);
}

void DiskTier::shed(const std::vector<Page>& pages, size_t first) {
  shed_writes_.fetch_add(pages.size() - first, std::memory_order_relaxed);
  std::vector<JournalEntry> lost;
  {
    const MutexLock lock(mutex_);
    for (size_t i = first; i < pages.size(); ++i) unpend(pages[i], lost);
  }
  if (!lost.empty()) hooks_.dropped(std::move(lost));
}

void DiskTier::write_pages(const std::vector<Page>& pages) {
  for (size_t next = 0; next < pages.size();) {
    if (!io_.writes.allows(Clock::now()) || !ensure_region()) return shed(pages, next);
    std::vector<Written> gathered;
    const size_t before = next;
    const uint64_t size = gather(pages, next, gathered);
    if (gathered.empty()) {
      if (next == before) close_region();  // the next page does not fit
      continue;
    }
    std::vector<DiskRecordHeader> headers;
    headers.reserve(gathered.size());
    for (const Written& written : gathered) headers.push_back(written.header);
    const int error = regions_.append(headers, write_buffer_->data(), size);
    publish(gathered, error == 0);
    if (error != 0) {
      shed_writes_.fetch_add(gathered.size(), std::memory_order_relaxed);
      if (error == EIO) regions_.skip(size);  // it may be the place; anything else it is not
      continue;
    }
    written_pages_.fetch_add(gathered.size(), std::memory_order_relaxed);
    written_bytes_.fetch_add(size, std::memory_order_relaxed);
  }
}

uint64_t DiskTier::gather(const std::vector<Page>& pages, size_t& next, std::vector<Written>& gathered) {
  std::vector<JournalEntry> lost;
  uint64_t size = 0;
  for (; next < pages.size() && size < kWriteBytes; ++next) {
    const Page& page = pages[next];
    {
      const MutexLock lock(mutex_);
      if (index_.has(page.fp)) continue;
      pending_.emplace(page.fp, Pending{});  // or it did not fit a moment ago
    }
    const uint64_t room = regions_.room(gathered.size() + 1);
    const uint64_t left = room > size ? room - size : 0;
    uint8_t* const to = write_buffer_->data() + size;
    DiskRecordHeader header{};
    const uint64_t payload_max = left < sizeof(header) ? 0 : left - sizeof(header);
    const uint64_t payload = hooks_.copy_out(page.key, page.fp, to + sizeof(header), payload_max, header);
    if (payload == 0 || payload > payload_max) {
      const bool never = payload + sizeof(header) > regions_.layout().record_bytes_max();
      if (payload != 0 && !never) break;
      {
        const MutexLock lock(mutex_);
        unpend(page, lost);
      }
      if (payload == 0)
        gone_.fetch_add(1, std::memory_order_relaxed);
      else
        too_large_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    header.magic = DiskRecordHeader::kMagic;
    header.version = DiskRecordHeader::kVersion;
    header.seq = regions_.seq();
    header.block = regions_.next_block() + static_cast<uint32_t>(size / kBlock);
    header.pool = page.key.pool;
    header.ns = page.key.ns;
    header.shard = page.key.shard;
    header.hash = page.key.hash;
    header.text_digest = crc32c(0, to + sizeof(header) + header.length, header.text_bytes);
    header.fp_lo = page.fp.lo;
    header.fp_hi = page.fp.hi;
    header.store_id = regions_.store_id();
    seal_header(header);
    std::memcpy(to, &header, sizeof(header));
    const uint64_t bytes = header.blocks() * kBlock;
    std::memset(to + sizeof(header) + payload, 0, bytes - sizeof(header) - payload);
    size += bytes;
    {
      const MutexLock lock(mutex_);
      Pending& pending = pending_[page.fp];
      pending.length = header.length;
      pending.digest = header.digest;
      pending.copied = true;
    }
    gathered.push_back({page, header});
  }
  if (!lost.empty()) hooks_.dropped(std::move(lost));
  return size;
}

void DiskTier::unpend(const Page& page, std::vector<JournalEntry>& lost) {
  const auto it = pending_.find(page.fp);
  if (it == pending_.end()) return;
  lost.push_back({page.fp, page.key.ns, it->second.length, JournalOp::kRemove});
  pending_.erase(it);
}

void DiskTier::publish(const std::vector<Written>& written, bool ok) {
  std::vector<JournalEntry> lost;
  {
    const MutexLock lock(mutex_);
    for (const Written& w : written) {
      const auto it = pending_.find(w.page.fp);
      if (!ok || it == pending_.end() || it->second.cancelled) {
        unpend(w.page, lost);
        continue;
      }
      index_.insert(w.page.fp, w.page.key.ns,
                    {regions_.region(), w.header.block, w.header.length, w.header.digest, w.header.seq,
                     static_cast<uint32_t>(w.header.blocks())});
      pending_.erase(it);
    }
  }
  if (!lost.empty()) hooks_.dropped(std::move(lost));
}

bool DiskTier::ensure_region() { return regions_.is_open() || open_region(); }

bool DiskTier::open_region() {
  std::vector<JournalEntry> removed;
  std::optional<uint32_t> region;
  {
    const MutexLock lock(mutex_);
    const size_t wanted = 1 + index_.region_count() / kFreeShare;
    while (index_.free_regions() < wanted && index_.evict_region(now_ms(), removed)) {
    }
    region = index_.take_free();
  }
  evicted_pages_.fetch_add(removed.size(), std::memory_order_relaxed);
  if (!removed.empty()) hooks_.dropped(std::move(removed));
  if (!region) return false;
  if (regions_.open(*region) == 0) return true;
  const MutexLock lock(mutex_);
  index_.give_free(*region);
  return false;
}

void DiskTier::close_region() {
  const uint32_t region = regions_.region();
  (void)regions_.close();  // without a table of contents it is walked through
  const MutexLock lock(mutex_);
  index_.close(region);
}

void DiskTier::probe_write() {
  if (ensure_region() && regions_.probe() == EIO) regions_.skip(kWriteBytes);
}

// ---- reading

void DiskTier::run_reader() {
  for (;;) {
    Read read;
    bool found = false;
    {
      const MutexLock lock(mutex_);
      const auto look = Clock::now() + kIdleLook;
      while (reads_.empty() && !closing_ &&
             read_wanted_.wait_until(mutex_, look) == std::cv_status::no_timeout) {
      }
      if (closing_) return;
      if (!reads_.empty()) {
        read = std::move(reads_.front());
        reads_.pop_front();
        found = true;
      }
    }
    if (found) {
      finish_read(read);
    } else if (!io_.reads.is_well(Clock::now()) && io_.reads.allows(Clock::now())) {
      const auto space = std::make_shared<DiskBufferSpace>(kBlock);
      try {
        (void)io_.read(0, DiskBuffer::make(space, kBlock)->data(), kBlock);
      } catch (const std::bad_alloc&) {  // at the next look
      }
    }
  }
}

bool DiskTier::is_intact(const Read& read) const {
  DiskRecordHeader header;
  std::memcpy(&header, read.buffer->data(), sizeof(header));
  if (!is_sealed(header) || header.version != DiskRecordHeader::kVersion ||
      header.store_id != regions_.store_id() || header.seq != read.place.seq ||
      header.block != read.place.block || header.length != read.place.length ||
      header.digest != read.place.digest || header.blocks() != read.place.blocks)
    return false;
  const uint8_t* const data = read.buffer->data() + sizeof(header);
  return crc32c(0, data, header.length) == header.digest &&
         crc32c(0, data + header.length, header.text_bytes) == header.text_digest;
}

void DiskTier::finish_read(Read& read) {
  DiskPage page;
  if (read.batch->is_over()) return read.batch->done(read.entry, {});
  if (!io_.reads.allows(Clock::now())) {
    shed_reads_.fetch_add(1, std::memory_order_relaxed);
    return read.batch->done(read.entry, {});
  }
  const uint64_t offset = regions_.layout().offset(read.place.region) + read.place.block * kBlock;
  const int error = io_.read(offset, read.buffer->data(), read.place.blocks * kBlock);
  const bool intact = error == 0 && is_intact(read);
  const bool wanted =
      intact && reinterpret_cast<const DiskRecordHeader*>(read.buffer->data())->has_key(read.page.key);
  std::vector<JournalEntry> lost;
  {
    const MutexLock lock(mutex_);
    DiskIndex::Entry* const entry = index_.find(read.page.fp);
    const bool is_there = entry != nullptr && entry->place.region == read.place.region &&
                          entry->place.seq == read.place.seq && entry->place.block == read.place.block;
    if (wanted && is_there) {
      page.buffer = read.buffer;
      page.hits = ++entry->hits;
      index_.touch(read.place.region);
    } else if (!intact && is_there) {  // else it was overwritten meanwhile
      lost.push_back({read.page.fp, entry->ns, entry->place.length, JournalOp::kRemove});
      index_.erase(read.page.fp);
    }
  }
  if (page.buffer != nullptr) {
    hits_.fetch_add(1, std::memory_order_relaxed);
    hit_bytes_.fetch_add(read.place.length, std::memory_order_relaxed);
  }
  if (!lost.empty()) {
    if (error == 0) corrupt_pages_.fetch_add(1, std::memory_order_relaxed);
    hooks_.dropped(std::move(lost));
  }
  read.buffer.reset();
  read.batch->done(read.entry, std::move(page));
}

}  // namespace kvstore
