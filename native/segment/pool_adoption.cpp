#include "segment/pool_adoption.hpp"

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

namespace kvstore {
namespace {

// More than change in one critical section of the store.
constexpr size_t kNewestEntries = 16384;
constexpr uint64_t kObjectsAtOnce = 16384;  // between two looks at whether it is called off
// More than one append() gives: as many as the newest state of the ring may have been ahead of the one before it.
constexpr uint64_t kUnseenNumbers = 1u << 24;

}  // namespace

PoolContent adopt_pool(KeptPool& pool, ObjectTable& objects, Journal& journal,
                       const AdoptionOptions& options) {
  while (objects.adopt_next_chunk()) {
  }
  bool chunks_lost = objects.slot_table().next_offset() != 0;
  std::vector<ScannedChunk> chunks;
  const SlotTable& slots = objects.slot_table();
  for (uint32_t chunk = 0; chunk < slots.chunks_end(); ++chunk)
    if (slots.has_chunk(chunk)) {
      chunks.push_back({slot_at(chunk, 1), slots.places(chunk) - 1, &slots.header(slot_at(chunk, 1))});
      // Where a chunk's own header went bad, some of its slots may not be seen.
      const uint64_t bytes = uint64_t{slots.places(chunk)} * sizeof(SlotHeader);
      chunks_lost |= bytes != (chunk == 0 ? options.first_chunk_bytes : objects.chunk_bytes());
    }

  ScanOptions scan_options;
  scan_options.data_offset = options.data_offset;
  scan_options.capacity_bytes = options.capacity_bytes;
  scan_options.last_seq = journal.last_seq();
  scan_options.newest_entries = pool.ring()->newest(kNewestEntries);
  scan_options.verify_digests = options.verify_digests;
  scan_options.progress = options.progress;
  PoolScan scan = scan_pool(pool.memory().base(), chunks, scan_options);

  PoolContent content;
  content.warm = true;
  content.dropped = scan.dropped;
  content.scanned_bytes = scan.scanned_bytes;
  content.scan_seconds = scan.seconds;
  content.needs_inventory = scan.needs_inventory || chunks_lost || pool.journal().numbers_lost;
  std::vector<JournalEntry> entries = std::move(scan.removals);
  PoolProgress unwatched;
  PoolProgress& progress = options.progress == nullptr ? unwatched : *options.progress;
  for (const PoolScan::Object& object : scan.objects) {
    if (content.objects % kObjectsAtOnce == 0) {
      progress.adopted_objects.store(content.objects, std::memory_order_relaxed);
      if (progress.cancelled.load(std::memory_order_relaxed))
        throw std::system_error(ECANCELED, std::generic_category(), "taking over the memory pool");
    }
    const bool told = object.seq != 0 && object.seq <= scan_options.last_seq;
    const uint64_t seq = told ? object.seq : scan_options.last_seq + 1 + entries.size();
    if (!objects.adopt(object.slot, object.fp, seq)) {  // it lies on another one, or on slot headers
      ++content.dropped[PoolScan::kMisplaced];
      entries.push_back({object.fp, object.ns, 0, JournalOp::kRemove});
      continue;
    }
    ++content.objects;
    content.object_bytes += object.length;
    if (!told) entries.push_back({object.fp, object.ns, object.length, JournalOp::kAdd});
  }
  // Before the headers of what is not there are made free.
  if (!entries.empty()) journal.append(entries);
  if (content.needs_inventory) journal.lose(pool.journal().numbers_lost ? kUnseenNumbers : 1);
  objects.end_adoption();
  return content;
}

}  // namespace kvstore
