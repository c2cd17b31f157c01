// The store and its disk tier: which pages the tier hears of, and how pages come back from it.
#include <algorithm>
#include <cstring>

#include "base/digest.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {
namespace {

using wire::Status;

// Pages that are brought into memory are read so many bytes at a time, so that what is read needs little room beside
// the pool.
constexpr uint64_t kSliceBytes = 32u << 20;
constexpr uint32_t kListedPages = 4096;  // that one slice of an inventory tells of, or a region's more

}  // namespace

uint64_t SegmentStore::copy_out(const Key& key, const Fingerprint& fp, uint8_t* to, uint64_t room,
                                DiskRecordHeader& header) {
  if (closed_.load() || held_back_.load() || retired_.has(key.ns)) return 0;
  const HeldObject held = shards_.hold(fp, key, 0, true);
  if (held.slot == kNoSlot) return 0;
  const uint64_t bytes = uint64_t{held.length} + held.text_bytes;
  if (bytes <= room) {
    std::memcpy(to, pool_.memory().base() + held.offset, bytes);
    header.digest_alg = held.digest_alg;
    header.length = held.length;
    header.digest = held.digest;
    header.depth = held.depth;
    header.text_bytes = held.text_bytes;
  }
  std::vector<ReadEntry> done(1);
  done[0].slot = held.slot;
  release_reads(done);
  return bytes;
}

void SegmentStore::dropped(std::vector<JournalEntry> pages) noexcept {
  const MutexLock lock(mutex_);
  // Some are in memory, and some were written anew since they were dropped.
  pages.erase(std::remove_if(pages.begin(), pages.end(),
                             [this](const JournalEntry& page) {
                               mutex_.assert_held();
                               return objects_.occupant(page.fp) != kNoSlot || disk_->stays(page.fp);
                             }),
              pages.end());
  if (pages.empty()) return;
  for (const JournalEntry& page : pages) journal_.foretell(page);
  journal_.append(pages);
}

void SegmentStore::note_for_disk(const KeyBlock& block, const std::vector<Fingerprint>& fps,
                                 const std::vector<uint32_t>& entries, bool wanted) {
  if (disk_ == nullptr || entries.empty()) return;
  std::vector<DiskTier::Page> pages;
  pages.reserve(entries.size());
  for (const uint32_t i : entries) pages.push_back({block.key(i), fps[i]});
  disk_->note(pages, wanted);
}

SegmentStore::Cold SegmentStore::cold_entries(const KeyBlock& block, const uint8_t* expected_lengths,
                                              std::vector<ReadEntry>& reads) {
  Cold cold;
  if (disk_ == nullptr || closed_.load() || held_back_.load() || retired_.has(block.ns)) return cold;
  std::vector<uint32_t> missed;
  std::vector<DiskTier::Page> pages;
  std::vector<Fingerprint> fps;
  for (uint32_t i = 0; i < reads.size(); ++i) {
    if (reads[i].status != Status::kMiss) continue;
    if (fps.empty()) fps = block.fingerprints();
    missed.push_back(i);
    pages.push_back({block.key(i), fps[i]});
  }
  if (pages.empty()) return cold;
  const std::vector<uint32_t> lengths = disk_->lengths(pages);
  for (size_t p = 0; p < pages.size(); ++p) {
    if (lengths[p] == 0) continue;
    const uint32_t i = missed[p];
    const uint32_t expected = expected_lengths == nullptr ? 0 : wire::u32_at(expected_lengths, i);
    if (expected != 0 && expected != lengths[p]) {
      reads[i].status = Status::kLengthMismatch;
      reads[i].length = lengths[p];
      continue;
    }
    cold.entries.push_back(i);
    cold.pages.push_back(pages[p]);
    cold.lengths.push_back(lengths[p]);
  }
  return cold;
}

SegmentStore::Clock::time_point SegmentStore::disk_deadline(uint32_t wait_ms) const {
  const uint32_t most_ms = disk_->options().wait_ms;
  return Clock::now() + std::chrono::milliseconds(wait_ms == 0 ? most_ms : std::min(wait_ms, most_ms));
}

void SegmentStore::read_from_disk(const KeyBlock& block, const uint8_t* expected_lengths, uint32_t wait_ms,
                                  const std::atomic<bool>& cancelled, std::vector<ReadEntry>& reads) {
  const Cold cold = cold_entries(block, expected_lengths, reads);
  if (cold.entries.empty()) return;
  const std::vector<DiskPage> pages = disk_->read(cold.pages, disk_deadline(wait_ms), cancelled);
  for (size_t p = 0; p < pages.size(); ++p) {
    if (pages[p].buffer == nullptr) continue;
    const DiskRecordHeader& header = pages[p].header();
    ReadEntry& read = reads[cold.entries[p]];
    read.status = Status::kOk;
    read.length = header.length;
    read.digest_alg = header.digest_alg;
    read.digest = header.digest;
    read.data = pages[p].data();
    read.from_disk = pages[p].buffer;
    if (pages[p].hits >= disk_->options().promote_hits) promote(pages[p], cancelled);
  }
}

bool SegmentStore::bring_into_memory(const KeyBlock& block, uint32_t wait_ms,
                                     const std::atomic<bool>& cancelled, uint64_t has_bytes,
                                     std::vector<ReadEntry>& reads) {
  const Cold cold = cold_entries(block, nullptr, reads);
  if (cold.entries.empty()) return false;
  const auto deadline = disk_deadline(wait_ms);
  const std::vector<Fingerprint> fps = block.fingerprints();
  for (const ReadEntry& read : reads) has_bytes += read.status == Status::kOk ? read.length : 0;
  std::vector<UseQueue::Use> uses;
  bool any = false;
  for (size_t first = 0; first < cold.entries.size() && Clock::now() < deadline;) {
    std::vector<DiskTier::Page> slice;
    for (uint64_t bytes = 0; first + slice.size() < cold.entries.size() && bytes < kSliceBytes;) {
      bytes += cold.lengths[first + slice.size()];
      slice.push_back(cold.pages[first + slice.size()]);
    }
    std::vector<DiskPage> pages = disk_->read(slice, deadline, cancelled);
    for (size_t p = 0; p < pages.size(); ++p) {
      if (pages[p].buffer == nullptr || !promote(pages[p], cancelled)) continue;
      const uint32_t i = cold.entries[first + p];
      any |= hold_read(block, fps, i, 0, has_bytes, false, reads[i], uses);
      has_bytes += reads[i].status == Status::kOk ? reads[i].length : 0;
      pages[p].buffer.reset();
    }
    first += slice.size();
  }
  note_uses(uses);
  return any;
}

bool SegmentStore::promote(const DiskPage& page, const std::atomic<bool>& cancelled) {
  const DiskRecordHeader& header = page.header();
  PutRequest put;
  put.block.ns = header.ns;
  put.block.pool = header.pool;
  put.block.shard_count = put.block.key_count = 1;
  put.block.shards = header.shard.data();
  put.block.hashes = header.hash.data();
  put.fingerprints = {header.fp()};
  put.total_bytes = header.length;
  put.lengths = reinterpret_cast<const uint8_t*>(&header.length);
  put.depths = reinterpret_cast<const uint8_t*>(&header.depth);
  if (header.text_bytes > 0) put.texts = {{reinterpret_cast<const char*>(page.text()), header.text_bytes}};
  std::vector<WriteEntry> writes(1);
  reserve_writes(put, 0, 1, Clock::now(), cancelled, writes);
  if (writes[0].slot != kNoSlot) {
    writes[0].digest = copy_crc32c(0, writes[0].data, page.data(), header.length);
    writes[0].digest_refused = writes[0].digest != header.digest;
    seal_writes(put, writes, Came::kFromDisk);
    if (writes[0].status == Status::kOk) promoted_.fetch_add(1, std::memory_order_relaxed);
  }
  return writes[0].status == Status::kOk || writes[0].status == Status::kExists;
}

SegmentStore::DiskUsage SegmentStore::disk_usage() {
  if (disk_ == nullptr) return {};
  return {disk_->used_bytes(), disk_->capacity_bytes(), disk_->shed_pages()};
}

bool SegmentStore::list_disk(Inventory& inventory, size_t entries_max, std::vector<JournalEntry>& entries) {
  const uint32_t regions = disk_ == nullptr ? 0 : disk_->region_count();
  auto& waiting = inventory.disk_entries;
  while (waiting.size() < std::min<size_t>(entries_max, kListedPages) && inventory.next_region < regions)
    disk_->list(inventory.next_region++, waiting);
  while (entries.size() < entries_max && !waiting.empty()) {
    if (!retired_.has(waiting.back().ns)) entries.push_back(waiting.back());
    waiting.pop_back();
  }
  return waiting.empty() && inventory.next_region >= regions;
}

}  // namespace kvstore
