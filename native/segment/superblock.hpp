// The first page of a pool file: whose the pool is, what lies where in it, and whether it is whole. Written once, when the pool
// is made; only the cluster is filled in later. A pool that is found again is judged by it before anything else of it is read.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace kvstore {

using PoolId = std::array<uint8_t, 16>;
using SegmentId = std::array<uint8_t, 16>;
using ClusterId = std::array<uint8_t, 16>;  // all zero: none yet
using BootId = std::array<uint8_t, 16>;

// Of the running kernel: other memory is there when it has changed. Throws std::system_error.
BootId current_boot_id();

struct PoolShape {
  uint64_t map_bytes = 0;
  uint64_t capacity_bytes = 0;
  uint64_t table_offset = 0;  // of slot 0
  uint64_t data_offset = 0;
  uint64_t journal_offset = 0;
  uint64_t journal_entries = 0;
  uint32_t slot_bytes = 0;
  uint32_t slot_version = 0;
  bool operator==(const PoolShape& o) const;
};

// Where a file lies: that of a copy differs.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
};

class Superblock {
 public:
  static constexpr uint64_t kBytes = 4096;
  // Raised by whatever a release before would read wrongly: superblock, journal ring, slot headers or how they are found.
  static constexpr uint32_t kFormat = 1;

  // `page`: kBytes of the pool's map, which outlive it.
  explicit Superblock(uint8_t* page) : page_(page) {}

  // Until end_format() the pool counts as empty, whenever this process is killed.
  void begin_format(const PoolId& pool_id, const SegmentId& segment_id, const PoolShape& shape,
                    const FileIdentity& file) noexcept;
  void end_format() noexcept;

  PoolId pool_id() const;
  PoolShape shape() const;
  // That the pages belong to.
  ClusterId cluster_id() const;
  void set_cluster_id(const ClusterId& cluster_id) noexcept;

  enum class Verdict {
    kWarm,    // what an earlier process of this segment has left, whole
    kEmpty,   // nothing that could be used again: it may be replaced
    kRefused  // not ours to touch
  };
  struct Judgement {
    Verdict verdict;
    std::string reason;  // of one that is not warm, for a log: what it is, and for a refused one the remedy
  };
  struct Expected {
    SegmentId segment_id{};
    PoolShape shape;
    FileIdentity file;
    BootId boot_id{};
  };
  static Judgement judge(const uint8_t* page, const Expected& expected);
  static bool has_magic(const uint8_t* page);
  // It was one, and its magic or the number of its format went bad: its check says what stood there.
  static bool is_damaged(const uint8_t* page);
  // Nobody has written to it.
  static bool is_blank(const uint8_t* page);
  // Of a pool that was made for this segment and whose superblock is whole; 0 for any other.
  static uint64_t capacity_bytes(const uint8_t* page);

 private:
  uint8_t* const page_;
};

}  // namespace kvstore
