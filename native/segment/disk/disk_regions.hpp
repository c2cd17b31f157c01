// The regions of the disk tier's file: which is being filled and how far, and what an earlier process has left in the
// others. One thread's at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "segment/disk/disk_format.hpp"
#include "segment/disk/disk_io.hpp"

namespace kvstore {

class DiskRegions {
 public:
  // The IO outlives this. Throws what disk_layout throws.
  DiskRegions(DiskIo& io, uint64_t capacity_bytes, const std::array<uint8_t, 16>& segment_id);

  const DiskLayout& layout() const { return layout_; }
  const DiskStoreId& store_id() const { return store_id_; }
  // Whether the file is one of this segment and size. What it holds counts from now on.
  bool load();
  // Nothing that the file holds counts any more. 0, or an errno.
  int format();
  // A file whose superblock could not be written is formatted by the first region that is opened.
  bool is_formatted() const { return formatted_; }

  // What a region holds: its records' headers, in order. Nothing when it holds none.
  struct Scanned {
    uint64_t seq = 0;
    std::vector<DiskRecordHeader> records;
  };
  std::optional<Scanned> scan(uint32_t region);
  // Is to be called for each that scan found, before one is opened.
  void seen(uint64_t seq) { last_seq_ = std::max(last_seq_, seq); }

  // ---- the region that is being filled
  bool is_open() const { return open_; }
  uint32_t region() const { return region_; }
  // How many bytes of records fit, the `count`th record that is added now included.
  uint64_t room(size_t count) const;
  uint32_t next_block() const { return next_block_; }
  uint64_t seq() const { return seq_; }
  // 0, or an errno: then none is open.
  int open(uint32_t region);
  // Writes records that lie one behind the other from next_block() on. When that fails they are not there.
  int append(const std::vector<DiskRecordHeader>& headers, const uint8_t* bytes, uint64_t size);
  // The next records lie so much later: the place takes none.
  void skip(uint64_t size) {
    next_block_ += static_cast<uint32_t>(std::min(size, room(1)) / DiskIo::kBlockBytes);
  }
  // What is at this place is no record any more, if the region is still of that round.
  int wipe(uint32_t region, uint64_t seq, uint32_t block);
  // Writes the table of contents. None is open afterwards, also when that fails.
  int close();
  // Writes where the next record is going to be: whether the disk takes it.
  int probe();

 private:
  uint64_t at(uint32_t region, uint64_t block) const {
    return layout_.offset(region) + block * DiskIo::kBlockBytes;
  }
  int write_region_header(uint32_t toc_block);
  bool is_record(const DiskRecordHeader& header, uint64_t seq, uint64_t block) const;
  void walk(uint32_t region, Scanned& found);

  DiskIo& io_;
  const DiskLayout layout_;
  const uint64_t capacity_bytes_;
  const std::array<uint8_t, 16> segment_id_;
  DiskStoreId store_id_{};
  bool formatted_ = false;
  uint64_t last_seq_ = 0;
  bool open_ = false;
  uint32_t region_ = 0, next_block_ = 1;
  uint64_t seq_ = 0;
  std::vector<DiskRecordHeader> records_;
  std::vector<uint64_t> seqs_;  // of each region's round, as far as this process knows it
};

}  // namespace kvstore
