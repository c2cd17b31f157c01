#include "transports/ucx/client/get.hpp"

#include <algorithm>

#include "base/digest.hpp"
#include "client/connection/registrations.hpp"

namespace kvstore {
namespace {

using wire::Status;

// Reads of a step; its entries are digested when all of them have ended.
constexpr size_t kStepReadsMax = 1024;
static_assert(kStepReadsMax <= UcxClientSession::kGenerationsMax, "a step's generations are read at a time");
// Bytes of a step that go straight into place: the digest finds some of them still in the cache.
constexpr uint64_t kStepDirectBytesMax = 8u << 20;
// Bounced entries start at a cache line.
constexpr size_t kBounceAlignment = 64;

size_t aligned(uint64_t bytes) {
  return static_cast<size_t>((bytes + kBounceAlignment - 1) / kBounceAlignment * kBounceAlignment);
}

// Lays contiguous bytes into the pieces of an entry, one stretch after the other, and hashes them on the way.
class PieceWriter {
 public:
  PieceWriter(const Pieces& memory, uint32_t entry) : memory_(memory), entry_(entry) {}

  void write(const uint8_t* from, size_t size) {
    while (size > 0) {
      const iovec piece = memory_.piece(entry_, piece_);
      const size_t step = std::min(size, piece.iov_len - done_);
      crc_ = copy_crc32c(crc_, static_cast<uint8_t*>(piece.iov_base) + done_, from, step);
      from += step, size -= step, done_ += step;
      if (done_ == piece.iov_len) ++piece_, done_ = 0;
    }
  }
  uint32_t crc() const { return crc_; }

 private:
  const Pieces& memory_;
  const uint32_t entry_;
  size_t piece_ = 0;
  size_t done_ = 0;
  uint32_t crc_ = 0;
};

}  // namespace

const UcxMemory* UcxGet::memory_of(const iovec& piece) {
  for (const auto& known : memories_)
    if (known->contains(piece.iov_base, piece.iov_len)) return known.get();
  const auto range = registered_range_of(piece.iov_base, shared_.context);
  if (range == nullptr) return nullptr;
  auto memory = shared_.memory_of(range);
  if (memory == nullptr || !memory->contains(piece.iov_base, piece.iov_len)) return nullptr;
  memories_.push_back(std::move(memory));
  return memories_.back().get();
}

bool UcxGet::is_direct(uint32_t entry) {
  const size_t pieces = batch_.memory->piece_count(entry);
  if (pieces > kStepReadsMax || (pieces > 1 && batch_.memory->entry_bytes(entry) / pieces < kPackedPartBytes))
    return false;
  for (size_t j = 0; j < pieces; ++j) {
    const iovec piece = batch_.memory->piece(entry, j);
    if (piece.iov_len > 0 && memory_of(piece) == nullptr) return false;
  }
  return true;
}

bool UcxGet::needs_bounce(const std::vector<EntryRun>& runs) {
  for (const EntryRun& run : runs)
    for (const uint32_t entry : run.entries(batch_.keys->shard_count))
      if (!is_direct(entry)) return true;
  return false;
}

void UcxGet::start_direct(uint32_t entry, uint64_t offset) {
  for (size_t j = 0; j < batch_.memory->piece_count(entry); ++j) {
    const iovec piece = batch_.memory->piece(entry, j);
    if (piece.iov_len == 0) continue;
    session_.read(piece.iov_base, piece.iov_len, offset, *memory_of(piece));
    offset += piece.iov_len;
  }
}

NetStatus UcxGet::fetch(const std::vector<uint32_t>& entries,
                        const std::vector<data_codec::Location>& locations) {
  std::vector<Item> items;
  for (size_t next = 0; next < entries.size();) {
    items.clear();
    uint64_t direct_bytes = 0, bounced_bytes = 0;
    size_t reads = 0;
    for (; next < entries.size() && items.size() < kStepReadsMax; ++next) {
      const uint32_t entry = entries[next];
      const data_codec::Location& location = locations[next];
      if (location.status != Status::kOk) {
        batch_.set_status(entry, location.status);
        continue;
      }
      const uint64_t bytes = batch_.memory->entry_bytes(entry);
      if (is_direct(entry)) {
        const size_t pieces = batch_.memory->piece_count(entry);
        if (!items.empty() && (reads + pieces > kStepReadsMax || direct_bytes + bytes > kStepDirectBytesMax))
          break;
        start_direct(entry, location.offset);
        items.push_back({entry, &location, nullptr});
        direct_bytes += bytes;
        reads += pieces;
        continue;
      }
      UcxBuffer& bounce = *session_.bounce();
      if (bytes > bounce.size_bytes()) {
        if (!items.empty()) break;
        if (const NetStatus status = fetch_large(entry, location); status != NetStatus::kOk) return status;
        continue;
      }
      if (bounced_bytes + bytes > bounce.size_bytes() || reads == kStepReadsMax) break;
      uint8_t* into = bounce.data() + bounced_bytes;
      session_.read(into, bytes, location.offset, bounce.memory());
      items.push_back({entry, &location, into});
      bounced_bytes += aligned(bytes);
      ++reads;
    }
    if (items.empty()) continue;
    if (const NetStatus status = finish(items); status != NetStatus::kOk) return status;
  }
  return NetStatus::kOk;
}

NetStatus UcxGet::finish(const std::vector<Item>& items) {
  NetStatus status = session_.finish(deadline_);
  if (status != NetStatus::kOk) return status;
  // Only now, behind the bytes: a slot that still has its generation had it all the time.
  std::vector<uint32_t> slots;
  for (const Item& item : items) slots.push_back(item.location->slot);
  std::vector<uint64_t> generations;
  status = session_.read_generations(slots, deadline_, &generations);
  if (status != NetStatus::kOk) return status;
  for (size_t i = 0; i < items.size(); ++i) {
    const uint32_t entry = items[i].entry;
    if (deadline_.expired()) return NetStatus::kTimeout;
    uint32_t crc = 0;
    if (items[i].bounced != nullptr) {
      PieceWriter writer(*batch_.memory, entry);
      writer.write(items[i].bounced, batch_.memory->entry_bytes(entry));
      crc = writer.crc();
      shared_.bounced_bytes.add(batch_.memory->entry_bytes(entry));
    } else {
      for (size_t j = 0; j < batch_.memory->piece_count(entry); ++j) {
        const iovec piece = batch_.memory->piece(entry, j);
        crc = crc32c(crc, static_cast<const uint8_t*>(piece.iov_base), piece.iov_len);
      }
    }
    conclude(entry, *items[i].location, generations[i], crc);
  }
  return NetStatus::kOk;
}

NetStatus UcxGet::fetch_large(uint32_t entry, const data_codec::Location& location) {
  UcxBuffer& bounce = *session_.bounce();
  PieceWriter writer(*batch_.memory, entry);
  const uint64_t bytes = batch_.memory->entry_bytes(entry);
  for (uint64_t done = 0; done < bytes;) {
    const size_t step = std::min<uint64_t>(bytes - done, bounce.size_bytes());
    session_.read(bounce.data(), step, location.offset + done, bounce.memory());
    if (const NetStatus status = session_.finish(deadline_); status != NetStatus::kOk) return status;
    writer.write(bounce.data(), step);
    done += step;
  }
  std::vector<uint64_t> generations;
  const NetStatus status = session_.read_generations({location.slot}, deadline_, &generations);
  if (status != NetStatus::kOk) return status;
  shared_.bounced_bytes.add(bytes);
  conclude(entry, location, generations[0], writer.crc());
  return NetStatus::kOk;
}

void UcxGet::conclude(uint32_t entry, const data_codec::Location& location, uint64_t generation,
                      uint32_t crc) {
  if (generation != location.generation) {
    batch_.set_status(entry, Status::kMiss);
    shared_.context.counters.add(Counter::kGenerationMismatches);
  } else if (crc != location.digest) {
    batch_.set_status(entry, Status::kDigestMismatch);
    shared_.context.counters.add(Counter::kDigestMismatches);
  } else {
    batch_.set_status(entry, Status::kOk);
    shared_.bytes_get.add(batch_.memory->entry_bytes(entry));
  }
}

}  // namespace kvstore
