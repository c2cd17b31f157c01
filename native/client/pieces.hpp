// Where the bytes of a batch lie in the caller's memory, and a cursor that walks them in bounded steps.
//
// A Pieces object is immutable and thread-safe; it owns no page memory: the caller keeps that alive and in
// place.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/wire.hpp"

namespace kvstore {

class Pieces {
 public:
  struct Strided {
    uint64_t base;
    int64_t stride;
    uint64_t size_bytes;
  };
  using Plan = std::vector<std::vector<Strided>>;  // for each shard its pieces

  // Piece j of shard s for key k: plan[s][j].base + plan[s][j].stride * indices[k]. Throws
  // std::invalid_argument without a shard or a key, and over the caps of a batch.
  static Pieces affine(Plan plan, std::vector<int64_t> indices);
  // The same with a plan, not null, that many batches share.
  static Pieces of_plan(std::shared_ptr<const Plan> plan, std::vector<int64_t> indices);
  // Entry-major, pieces_per_entry items an entry. A size of zero is an absent piece. Throws as affine() does,
  // and when the numbers of pointers and sizes don't fit each other.
  static Pieces from_pointers(std::vector<uint64_t> pointers, std::vector<uint64_t> sizes,
                              size_t pieces_per_entry);
  // One piece an entry; entries of size zero are none that the call will touch.
  static Pieces sparse(std::vector<uint64_t> pointers, std::vector<uint64_t> sizes);

  size_t entry_count() const { return entry_count_; }
  // Of the entries without fault.
  uint64_t total_bytes() const { return total_bytes_; }
  // OK, or what is wrong with the entry, which no call must touch then: BAD_REQUEST (no bytes, or an address
  // that leaves the address space), TOO_LARGE (over the cap of an object).
  wire::Status fault(size_t entry) const {
    return faults_.empty() ? wire::Status::kOk : static_cast<wire::Status>(faults_[entry]);
  }
  // 0 for from_pointers(): it fits any number of shards that divides entry_count().
  size_t shard_count() const { return plan_ == nullptr ? 0 : plan_->size(); }

  uint64_t entry_bytes(size_t entry) const {
    return plan_ == nullptr ? entry_bytes_[entry] : entry_bytes_[entry % plan_->size()];
  }
  size_t piece_count(size_t entry) const {
    return plan_ == nullptr ? pieces_per_entry_ : (*plan_)[entry % plan_->size()].size();
  }
  iovec piece(size_t entry, size_t index) const {
    if (plan_ == nullptr) {
      const size_t i = entry * pieces_per_entry_ + index;
      return {reinterpret_cast<void*>(pointers_[i]), sizes_[i]};
    }
    const Strided& s = (*plan_)[entry % plan_->size()][index];
    const auto key_index = static_cast<uint64_t>(indices_[entry / plan_->size()]);
    return {reinterpret_cast<void*>(s.base + static_cast<uint64_t>(s.stride) * key_index), s.size_bytes};
  }

 private:
  Pieces() = default;
  void set_fault(size_t entry, wire::Status fault);
  std::shared_ptr<const Plan> plan_;  // null after from_pointers() and sparse()
  std::vector<int64_t> indices_;
  std::vector<uint64_t> pointers_, sizes_;
  size_t pieces_per_entry_ = 0;
  std::vector<uint64_t> entry_bytes_;  // per shard (affine) or per entry
  std::vector<uint8_t> faults_;        // per entry, or empty: none
  size_t entry_count_ = 0;
  uint64_t total_bytes_ = 0;
};

// Walks the pieces of some entries in order, in steps of bounded bytes and vector length.
class PieceCursor {
 public:
  // One part of a step: a stretch of memory that belongs to entries[ordinal].
  struct Part {
    size_t ordinal;
    uint8_t* data;
    size_t size;
  };

  // `entries` must outlive the cursor.
  PieceCursor(const Pieces& pieces, const std::vector<uint32_t>& entries)
      : pieces_(pieces), entries_(entries) {}

  // The next parts, at most `bytes_max` bytes and `parts_max` of them; false at the end. Parts are never
  // empty.
  bool next(size_t bytes_max, size_t parts_max, std::vector<Part>* parts, size_t* bytes);

 private:
  const Pieces& pieces_;
  const std::vector<uint32_t>& entries_;
  size_t ordinal_ = 0;
  size_t piece_ = 0;
  uint64_t offset_ = 0;
};

// A step whose parts are smaller than this on average goes through a staging buffer: one copy costs less than
// the kernel's work for each element of a long vector.
constexpr size_t kPackedPartBytes = 4096;
inline bool worth_packing(size_t parts, size_t bytes) {
  return parts > 1 && bytes / parts < kPackedPartBytes;
}
constexpr size_t kStepBytes = 256u << 10;
constexpr size_t kStepPartsMax = 4096;

}  // namespace kvstore
