#include "segment/disk/disk_regions.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>

#include "base/digest.hpp"

namespace kvstore {
namespace {

constexpr uint64_t kBlock = DiskIo::kBlockBytes;

struct Free {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using Blocks = std::unique_ptr<uint8_t, Free>;

uint64_t in_blocks(uint64_t bytes) { return (bytes + kBlock - 1) / kBlock; }
uint64_t toc_blocks(uint64_t records) { return in_blocks(records * sizeof(DiskRecordHeader)); }

// Zeroed.
Blocks make_blocks(uint64_t count) {
  Blocks blocks(static_cast<uint8_t*>(std::aligned_alloc(kBlock, count * kBlock)));
  if (!blocks) throw std::bad_alloc();
  std::memset(blocks.get(), 0, count * kBlock);
  return blocks;
}

}  // namespace

DiskRegions::DiskRegions(DiskIo& io, uint64_t capacity_bytes, const std::array<uint8_t, 16>& segment_id)
    : io_(io),
      layout_(disk_layout(capacity_bytes)),
      capacity_bytes_(capacity_bytes),
      segment_id_(segment_id),
      seqs_(layout_.region_count) {}

bool DiskRegions::load() {
  const Blocks block = make_blocks(1);
  if (io_.read(0, block.get(), kBlock) != 0) return false;
  DiskSuperblock super;
  std::memcpy(&super, block.get(), sizeof(super));
  if (!is_sealed(super) || super.version != DiskSuperblock::kVersion || super.segment_id != segment_id_ ||
      super.capacity_bytes != capacity_bytes_ || super.region_bytes != layout_.region_bytes)
    return false;
  store_id_ = super.store_id;
  formatted_ = true;
  return true;
}

int DiskRegions::format() {
  // What other ids have written is not ours: nothing has to be wiped.
  std::random_device random;
  for (uint8_t& byte : store_id_) byte = static_cast<uint8_t>(random());
  DiskSuperblock super{};
  super.magic = DiskSuperblock::kMagic;
  super.version = DiskSuperblock::kVersion;
  super.store_id = store_id_;
  super.segment_id = segment_id_;
  super.capacity_bytes = capacity_bytes_;
  super.region_bytes = layout_.region_bytes;
  seal_header(super);
  const Blocks block = make_blocks(1);
  std::memcpy(block.get(), &super, sizeof(super));
  const int error = io_.write(0, block.get(), kBlock);
  formatted_ = error == 0;
  return error;
}

bool DiskRegions::is_record(const DiskRecordHeader& header, uint64_t seq, uint64_t block) const {
  return is_sealed(header) && header.version == DiskRecordHeader::kVersion && header.store_id == store_id_ &&
         header.seq == seq && header.block == block &&
         (block + header.blocks()) * kBlock <= layout_.region_bytes;
}

std::optional<DiskRegions::Scanned> DiskRegions::scan(uint32_t region) {
  const Blocks block = make_blocks(1);
  if (io_.read(at(region, 0), block.get(), kBlock) != 0) return std::nullopt;
  DiskRegionHeader header;
  std::memcpy(&header, block.get(), sizeof(header));
  if (!is_sealed(header) || header.store_id != store_id_ || header.region != region) return std::nullopt;
  Scanned found;
  found.seq = seqs_[region] = header.seq;
  const uint64_t blocks = toc_blocks(header.record_count);
  const uint64_t end = layout_.region_bytes / kBlock;
  if (header.toc_block == 0 || header.toc_block > end || blocks > end - header.toc_block) {
    walk(region, found);
    return found;
  }
  if (blocks == 0) return found;
  const Blocks toc = make_blocks(blocks);
  if (io_.read(at(region, header.toc_block), toc.get(), blocks * kBlock) != 0) return found;
  for (uint32_t i = 0; i < header.record_count; ++i) {
    DiskRecordHeader record;
    std::memcpy(&record, toc.get() + i * sizeof(record), sizeof(record));
    if (is_record(record, header.seq, record.block)) found.records.push_back(record);
  }
  return found;
}

// What a process has left that ended while it filled the region.
void DiskRegions::walk(uint32_t region, Scanned& found) {
  const Blocks block = make_blocks(1);
  const uint64_t end = layout_.region_bytes / kBlock;
  for (uint64_t next = 1; next < end;) {
    DiskRecordHeader record;
    if (io_.read(at(region, next), block.get(), kBlock) != 0) return;
    std::memcpy(&record, block.get(), sizeof(record));
    if (!is_record(record, found.seq, next)) return;
    found.records.push_back(record);
    next += record.blocks();
  }
}

uint64_t DiskRegions::room(size_t count) const {
  const uint64_t taken = next_block_ + toc_blocks(records_.size() + count);
  const uint64_t blocks = layout_.region_bytes / kBlock;
  return taken < blocks ? (blocks - taken) * kBlock : 0;
}

int DiskRegions::write_region_header(uint32_t toc_block) {
  DiskRegionHeader header{};
  header.magic = DiskRegionHeader::kMagic;
  header.region = region_;
  header.store_id = store_id_;
  header.seq = seq_;
  header.record_count = toc_block == 0 ? 0 : static_cast<uint32_t>(records_.size());
  header.toc_block = toc_block;
  seal_header(header);
  const Blocks block = make_blocks(1);
  std::memcpy(block.get(), &header, sizeof(header));
  return io_.write(at(region_, 0), block.get(), kBlock);
}

int DiskRegions::open(uint32_t region) {
  if (!formatted_)
    if (const int error = format()) return error;
  region_ = region;
  seqs_[region] = 0;  // whatever is there may be written over in part
  seq_ = ++last_seq_;
  next_block_ = 1;
  records_.clear();
  // Before any record: an old table of contents would be believed otherwise.
  const int error = write_region_header(0);
  open_ = error == 0;
  if (open_) seqs_[region] = seq_;
  return error;
}

int DiskRegions::append(const std::vector<DiskRecordHeader>& headers, const uint8_t* bytes, uint64_t size) {
  records_.reserve(records_.size() + headers.size());
  if (const int error = io_.write(at(region_, next_block_), bytes, size)) return error;
  records_.insert(records_.end(), headers.begin(), headers.end());
  next_block_ += static_cast<uint32_t>(size / kBlock);
  return 0;
}

int DiskRegions::close() {
  open_ = false;
  const uint64_t blocks = toc_blocks(records_.size());
  if (blocks > 0) {
    const Blocks toc = make_blocks(blocks);
    std::memcpy(toc.get(), records_.data(), records_.size() * sizeof(DiskRecordHeader));
    if (const int error = io_.write(at(region_, next_block_), toc.get(), blocks * kBlock)) return error;
  }
  return write_region_header(next_block_);
}

int DiskRegions::wipe(uint32_t region, uint64_t seq, uint32_t block) {
  if (seqs_[region] != seq) return 0;
  const Blocks zeros = make_blocks(1);
  return io_.write(at(region, block), zeros.get(), kBlock);
}

int DiskRegions::probe() {
  const Blocks block = make_blocks(1);
  return io_.write(at(region_, next_block_), block.get(), kBlock);
}

}  // namespace kvstore
