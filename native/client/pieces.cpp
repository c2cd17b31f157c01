#include "client/pieces.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "protocol/wire.hpp"

namespace kvstore {
namespace {

void check_entry_bytes(uint64_t bytes) {
  if (bytes == 0) throw std::invalid_argument("an entry needs at least one byte");
  if (bytes > wire::kObjectBytesMax)
    throw std::invalid_argument("an entry of " + std::to_string(bytes) + " bytes is over the cap of " +
                                std::to_string(wire::kObjectBytesMax) + " bytes an object");
}

void check_range(uint64_t address, uint64_t size) {
  if (address == 0 || address + size < address)
    throw std::invalid_argument("a piece lies outside of the address space");
}

}  // namespace

Pieces Pieces::affine(std::vector<std::vector<Strided>> plan, std::vector<int64_t> indices) {
  if (plan.empty() || indices.empty())
    throw std::invalid_argument("a plan needs at least one shard and one key");
  if (plan.size() > wire::kShardsMax || indices.size() > wire::kKeysMax ||
      plan.size() * indices.size() > wire::kEntriesMax)
    throw std::invalid_argument("over the cap of " + std::to_string(wire::kShardsMax) + " shards, " +
                                std::to_string(wire::kKeysMax) + " keys or " +
                                std::to_string(wire::kEntriesMax) + " entries: split the batch");
  const auto [lowest, highest] = std::minmax_element(indices.begin(), indices.end());
  Pieces p;
  p.entry_count_ = plan.size() * indices.size();
  for (const auto& shard : plan) {
    uint64_t bytes = 0;
    for (const Strided& s : shard) {
      if (s.size_bytes == 0 || s.size_bytes > wire::kObjectBytesMax) check_entry_bytes(s.size_bytes);
      bytes += s.size_bytes;
      check_entry_bytes(bytes);
      for (const int64_t index : {*lowest, *highest}) {
        int64_t delta = 0;
        uint64_t address = 0;
        // The builtins compute with unlimited precision and report what does not fit.
        if (__builtin_mul_overflow(s.stride, index, &delta) ||
            __builtin_add_overflow(s.base, delta, &address))
          throw std::invalid_argument("a piece lies outside of the address space");
        check_range(address, s.size_bytes);
      }
    }
    check_entry_bytes(bytes);
    p.entry_bytes_.push_back(bytes);
    p.total_bytes_ += bytes * indices.size();
  }
  p.plan_ = std::move(plan);
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
  if (p.entry_count_ > wire::kEntriesMax)
    throw std::invalid_argument(std::to_string(p.entry_count_) + " entries are over the cap of " +
                                std::to_string(wire::kEntriesMax) + ": split the batch");
  p.entry_bytes_.reserve(p.entry_count_);
  for (size_t at = 0; at < pointers.size(); at += pieces_per_entry) {
    uint64_t bytes = 0;
    for (size_t i = at; i < at + pieces_per_entry; ++i) {
      if (sizes[i] > wire::kObjectBytesMax) check_entry_bytes(sizes[i]);
      if (sizes[i] > 0) check_range(pointers[i], sizes[i]);
      bytes += sizes[i];
      if (bytes > wire::kObjectBytesMax) check_entry_bytes(bytes);
    }
    check_entry_bytes(bytes);
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
