#include "client/pieces.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "protocol/wire.hpp"

namespace kvstore {
namespace {

using wire::Status;

void check_entry_count(size_t entries) {
  if (entries > wire::kEntriesMax)
    throw std::invalid_argument(std::to_string(entries) + " entries are over the cap of " +
                                std::to_string(wire::kEntriesMax) + ": split the batch");
}

bool in_address_space(uint64_t address, uint64_t size) { return address != 0 && address + size >= address; }

// Where a piece lies for a key; 0 when that can't be said in 64 bits.
uint64_t strided_address(const Pieces::Strided& piece, int64_t index) {
  int64_t delta = 0;
  uint64_t address = 0;
  // The builtins compute with unlimited precision and report what does not fit.
  const bool overflow = __builtin_mul_overflow(piece.stride, index, &delta) ||
                        __builtin_add_overflow(piece.base, delta, &address);
  return overflow ? 0 : address;
}

// Adds a piece to its entry. Any status but OK is the entry's fault.
Status add_piece(uint64_t size, uint64_t* entry_bytes) {
  if (size > wire::kObjectBytesMax || *entry_bytes + size > wire::kObjectBytesMax) return Status::kTooLarge;
  *entry_bytes += size;
  return Status::kOk;
}

// The bytes of a shard's objects; *fault when none of them can be used.
uint64_t shard_bytes(const std::vector<Pieces::Strided>& shard, Status* fault) {
  uint64_t bytes = 0;
  for (const Pieces::Strided& piece : shard) {
    *fault = piece.size_bytes == 0 ? Status::kBadRequest : add_piece(piece.size_bytes, &bytes);
    if (*fault != Status::kOk) return 0;
  }
  if (bytes == 0) *fault = Status::kBadRequest;
  return bytes;
}

bool in_address_space(const std::vector<Pieces::Strided>& shard, int64_t index) {
  return std::all_of(shard.begin(), shard.end(), [&](const Pieces::Strided& piece) {
    return in_address_space(strided_address(piece, index), piece.size_bytes);
  });
}

}  // namespace

void Pieces::set_fault(size_t entry, Status fault) {
  if (faults_.empty()) faults_.resize(entry_count_, 0);
  faults_[entry] = static_cast<uint8_t>(fault);
}

Pieces Pieces::affine(Plan plan, std::vector<int64_t> indices) {
  return of_plan(std::make_shared<const Plan>(std::move(plan)), std::move(indices));
}

Pieces Pieces::of_plan(std::shared_ptr<const Plan> shared, std::vector<int64_t> indices) {
  if (shared->empty() || indices.empty())
    throw std::invalid_argument("a plan needs at least one shard and one key");
  const Plan& plan = *shared;
  if (plan.size() > wire::kShardsMax || indices.size() > wire::kKeysMax)
    throw std::invalid_argument("over the cap of " + std::to_string(wire::kShardsMax) + " shards or " +
                                std::to_string(wire::kKeysMax) + " keys: split the batch");
  check_entry_count(plan.size() * indices.size());
  const auto [lowest, highest] = std::minmax_element(indices.begin(), indices.end());
  Pieces p;
  p.entry_count_ = plan.size() * indices.size();
  for (size_t s = 0; s < plan.size(); ++s) {
    Status shard_fault = Status::kOk;
    const uint64_t bytes = shard_bytes(plan[s], &shard_fault);
    p.entry_bytes_.push_back(bytes);
    size_t sound = indices.size();
    // Between two indices that are right every other one is.
    if (shard_fault != Status::kOk || !in_address_space(plan[s], *lowest) ||
        !in_address_space(plan[s], *highest))
      for (size_t k = 0; k < indices.size(); ++k) {
        Status fault = shard_fault;
        if (fault == Status::kOk && !in_address_space(plan[s], indices[k])) fault = Status::kBadRequest;
        if (fault == Status::kOk) continue;
        p.set_fault(k * plan.size() + s, fault);
        --sound;
      }
    p.total_bytes_ += bytes * sound;
  }
  p.plan_ = std::move(shared);
  p.indices_ = std::move(indices);
  return p;
}

Pieces Pieces::from_pointers(std::vector<uint64_t> pointers, std::vector<uint64_t> sizes,
                             size_t pieces_per_entry) {
  if (pointers.empty() || pieces_per_entry == 0 || pointers.size() != sizes.size() ||
      pointers.size() % pieces_per_entry != 0)
    throw std::invalid_argument(
        "pointers and sizes must have the same length, a multiple of pieces_per_entry");
  Pieces p;
  p.entry_count_ = pointers.size() / pieces_per_entry;
  check_entry_count(p.entry_count_);
  p.entry_bytes_.reserve(p.entry_count_);
  for (size_t entry = 0; entry < p.entry_count_; ++entry) {
    uint64_t bytes = 0;
    Status fault = Status::kOk;
    for (size_t i = entry * pieces_per_entry; i < (entry + 1) * pieces_per_entry && fault == Status::kOk;
         ++i) {
      fault = add_piece(sizes[i], &bytes);
      if (fault == Status::kOk && sizes[i] > 0 && !in_address_space(pointers[i], sizes[i]))
        fault = Status::kBadRequest;
    }
    if (fault == Status::kOk && bytes == 0) fault = Status::kBadRequest;
    if (fault != Status::kOk) p.set_fault(entry, fault), bytes = 0;
    p.entry_bytes_.push_back(bytes);
    p.total_bytes_ += bytes;
  }
  p.pointers_ = std::move(pointers);
  p.sizes_ = std::move(sizes);
  p.pieces_per_entry_ = pieces_per_entry;
  return p;
}

Pieces Pieces::sparse(std::vector<uint64_t> pointers, std::vector<uint64_t> sizes) {
  Pieces p;
  p.entry_count_ = pointers.size();
  p.pieces_per_entry_ = 1;
  for (const uint64_t size : sizes) p.total_bytes_ += size;
  p.entry_bytes_ = sizes;
  p.pointers_ = std::move(pointers);
  p.sizes_ = std::move(sizes);
  return p;
}

bool PieceCursor::next(size_t bytes_max, size_t parts_max, std::vector<Part>* parts, size_t* bytes) {
  parts->clear();
  *bytes = 0;
  while (ordinal_ < entries_.size() && *bytes < bytes_max && parts->size() < parts_max) {
    const size_t entry = entries_[ordinal_];
    if (piece_ == pieces_.piece_count(entry)) {
      ++ordinal_;
      piece_ = 0;
      continue;
    }
    const iovec piece = pieces_.piece(entry, piece_);
    const size_t size = std::min<uint64_t>(piece.iov_len - offset_, bytes_max - *bytes);
    if (size > 0) parts->push_back({ordinal_, static_cast<uint8_t*>(piece.iov_base) + offset_, size});
    *bytes += size;
    offset_ += size;
    if (offset_ == piece.iov_len) {
      ++piece_;
      offset_ = 0;
    }
  }
  return !parts->empty();
}

}  // namespace kvstore
