// How the disk tier's file is laid out. Numbers are little-endian, blocks have 4096 bytes.
//
//   block 0            superblock
//   then regions       of `region_bytes` each, one behind the other:
//     block 0            region header
//     then records       record header, payload, text, and zeros up to the next block
//     in a closed one    its record headers once more, one behind the other: the region's table of contents
//
// A region is filled from its begin to its end, then closed, and later begun anew with another sequence number. Each
// record header names the store and that number and has a check of its own: what an earlier round or another store has
// left, or a crash has half written, is none.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "protocol/keys.hpp"
#include "segment/disk/disk_io.hpp"

namespace kvstore {

using DiskStoreId = std::array<uint8_t, 8>;

struct DiskSuperblock {
  static constexpr uint32_t kMagic = 0x534B5344;  // "DSKS"
  static constexpr uint16_t kVersion = 1;
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  DiskStoreId store_id;
  std::array<uint8_t, 16> segment_id;
  uint64_t capacity_bytes;
  uint64_t region_bytes;
  uint32_t reserved2;
  uint32_t check;
};
static_assert(sizeof(DiskSuperblock) == 56);

struct DiskRegionHeader {
  static constexpr uint32_t kMagic = 0x524B5344;  // "DSKR"
  uint32_t magic;
  uint32_t region;
  DiskStoreId store_id;
  uint64_t seq;           // of this round; grows from one region that is begun to the next
  uint32_t record_count;  // of a closed one
  uint32_t toc_block;     // where its table of contents begins; 0: it is not closed
  uint32_t reserved;
  uint32_t check;
};
static_assert(sizeof(DiskRegionHeader) == 40);

struct DiskRecordHeader {
  static constexpr uint32_t kMagic = 0x4F4B5344;  // "DSKO"
  static constexpr uint16_t kVersion = 1;
  uint32_t magic;
  uint16_t version;
  uint8_t digest_alg;
  uint8_t reserved;
  uint64_t seq;    // of the region's round
  uint32_t block;  // in the region
  uint32_t length;
  uint32_t digest;
  uint32_t depth;
  uint16_t text_bytes;
  uint16_t pool;
  NamespaceId ns;
  Shard shard;
  PageHash hash;
  uint32_t text_digest;
  uint32_t reserved2;
  uint64_t fp_lo, fp_hi;
  DiskStoreId store_id;
  uint32_t reserved3;
  uint32_t check;

  bool has_key(const Key& key) const {
    return hash == key.hash && ns == key.ns && pool == key.pool && shard == key.shard;
  }
  Key key() const { return {ns, pool, shard, hash}; }
  Fingerprint fp() const { return {fp_lo, fp_hi}; }
  uint64_t blocks() const {
    return (sizeof(DiskRecordHeader) + uint64_t{length} + text_bytes + DiskIo::kBlockBytes - 1) /
           DiskIo::kBlockBytes;
  }
};
static_assert(sizeof(DiskRecordHeader) == 128);

// The digest of what stands before `check`, which is the last member of each.
uint32_t disk_check(const void* header, size_t size);
template <typename Header>
void seal_header(Header& header) {
  static_assert(std::is_trivially_copyable_v<Header>);
  header.check = disk_check(&header, sizeof(Header));
}
template <typename Header>
bool is_sealed(const Header& header) {
  return header.magic == Header::kMagic && header.check == disk_check(&header, sizeof(Header));
}

struct DiskLayout {
  uint64_t region_bytes = 0;
  uint32_t region_count = 0;

  uint64_t offset(uint32_t region) const { return DiskIo::kBlockBytes + uint64_t{region} * region_bytes; }
  // The largest record that a region can have.
  uint64_t record_bytes_max() const;
};
// Throws std::invalid_argument when that is too little for a tier.
DiskLayout disk_layout(uint64_t capacity_bytes);

}  // namespace kvstore
