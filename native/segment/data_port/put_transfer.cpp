#include "segment/data_port/put_transfer.hpp"

#include <algorithm>
#include <string>

#include "base/digest.hpp"

namespace kvstore {
namespace {

using wire::Status;
using wire::WireError;

constexpr uint32_t kWindowEntries = 1024;
// How much is reserved ahead of the bytes: as much as has come, but between these; and of bytes that are there already.
constexpr uint64_t kFirstWindowBytes = 256ull << 10;
constexpr uint64_t kWindowBytes = 4ull << 20;
constexpr uint64_t kPullWindowBytes = 64ull << 20;
constexpr size_t kReceiveBytes = 256u << 10;  // of one recvmsg: hashed while it is still in the cache
constexpr uint32_t kCommitTimeoutMsMax = 60000;

// Bytes of entries that need none go here. Each thread only writes to its own, and nobody reads it.
uint8_t* discard_area() {
  static thread_local std::vector<uint8_t> area(kReceiveBytes);
  return area.data();
}

void check_pieces(const PullPieces& pieces, size_t total, uint64_t limit) {
  for (size_t p = 0; p < total; ++p)
    if (pieces.offset(p) > limit || pieces.size(p) > limit - pieces.offset(p))
      throw WireError(Status::kBadRequest,
                      "piece " + std::to_string(p) + " [" + std::to_string(pieces.offset(p)) + ", +" +
                          std::to_string(pieces.size(p)) + ") is outside the registered " +
                          std::to_string(limit) + " bytes");
}

}  // namespace

uint64_t PullPieces::offset(size_t piece) const {
  uint64_t value;
  std::memcpy(&value, offsets + piece * 8, 8);
  return value;
}

uint32_t PullPieces::size(size_t piece) const { return wire::u32_at(sizes, piece); }

uint32_t PullPieces::digest(size_t entry) const { return wire::u32_at(digests, entry); }

PullPieces read_pull_pieces(wire::Reader& reader, const PutRequest& put, bool with_digests) {
  PullPieces pieces;
  pieces.buffer_id = reader.u32("buffer_id");
  pieces.per_entry = reader.u32("pieces");
  const uint32_t n = put.entry_count();
  const uint64_t total = uint64_t{pieces.per_entry} * n;
  if (total > wire::kPullPiecesMax)
    throw WireError(Status::kTooLarge, std::to_string(total) + " pieces are over the cap of " +
                                           std::to_string(wire::kPullPiecesMax) + " a request");
  pieces.offsets = reader.bytes(total * 8, "piece offsets");
  pieces.sizes = reader.bytes(total * 4, "piece bytes");
  if (with_digests) pieces.digests = reader.bytes(size_t{n} * 4, "digests");
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t sum = 0;
    for (uint32_t p = 0; p < pieces.per_entry; ++p) sum += pieces.size(size_t{i} * pieces.per_entry + p);
    if (sum != put.length(i))
      throw WireError(Status::kBadRequest, "the pieces of entry " + std::to_string(i) + " add up to " +
                                               std::to_string(sum) + " bytes, not to its length of " +
                                               std::to_string(put.length(i)));
  }
  return pieces;
}

PutTransfer::PutTransfer(SegmentStore& store, const PutRequest& put, const std::atomic<bool>& cancelled,
                         PutBatch& batch)
    : store_(store),
      put_(put),
      cancelled_(cancelled),
      batch_(batch),
      wait_left_(std::chrono::milliseconds(std::min(put.commit_timeout_ms, kCommitTimeoutMsMax))),
      writes_(put.entry_count()),
      share_(store.budgets().writing_bytes) {
  batch_.begin_put();
}

PutTransfer::~PutTransfer() {
  store_.abandon_writes(writes_);
  if (!sealed_) batch_.end_put(0);
}

uint64_t PutTransfer::budgeted_bytes(uint32_t entry) const {
  return ExtentAllocator::rounded(uint64_t{put_.length(entry)} + put_.text(entry).size());
}

template <typename Wait>
void PutTransfer::waiting(Wait&& wait) {
  // Only waiting counts: a slow transfer does not use up what its later windows may wait.
  const auto started = SegmentStore::Clock::now();
  wait(started + wait_left_);
  wait_left_ =
      std::max(wait_left_ - (SegmentStore::Clock::now() - started), SegmentStore::Clock::duration::zero());
}

uint32_t PutTransfer::reserve_window(uint32_t first, uint64_t bytes) {
  bool allowed = false;
  waiting([&](auto deadline) { allowed = share_.take(budgeted_bytes(first), deadline, cancelled_); });
  if (!allowed) {
    writes_[first].status = Status::kNoSpace;
    return first + 1;
  }
  const uint32_t n = put_.entry_count();
  uint32_t end = first + 1;
  for (uint64_t taken = put_.length(first); end < n && end - first < kWindowEntries; ++end) {
    taken += put_.length(end);
    if (taken > bytes || !share_.try_take(budgeted_bytes(end))) break;
  }
  waiting([&](auto deadline) {
    store_.reserve_writes(put_, first, end - first, deadline, cancelled_, writes_, &batch_);
  });
  for (uint32_t i = first; i < end; ++i)
    if (writes_[i].slot == kNoSlot) share_.give_back(budgeted_bytes(i));
  return end;
}

void PutTransfer::receive(ServerSocket& socket, std::chrono::milliseconds stall) {
  const uint32_t n = put_.entry_count();
  ServerSocket::Transfer transfer(socket, {stall, &share_.budget()});
  constexpr auto deadline =
      ServerSocket::Clock::time_point::max();  // it lasts for as long as it makes progress
  for (uint32_t first = 0; first < n;) {
    if (put_.total_bytes > 0)
      socket.await_bytes(put_.length(first) > kFirstWindowBytes ? ServerSocket::kBufferBytes : 1);
    const auto reserving = ServerSocket::Clock::now();
    const uint32_t end = reserve_window(first, std::clamp(transfer.bytes(), kFirstWindowBytes, kWindowBytes));
    transfer.forgive(ServerSocket::Clock::now() - reserving);
    receive_window(socket, first, end, deadline);
    first = end;
  }
  std::vector<uint32_t> promised(n);
  socket.read(promised.data(), size_t{n} * 4, deadline);
  for (uint32_t i = 0; i < n; ++i) writes_[i].digest_refused = writes_[i].digest != promised[i];
}

void PutTransfer::receive_window(ServerSocket& socket, uint32_t first, uint32_t end,
                                 ServerSocket::Clock::time_point deadline) {
  iovec vectors[ServerSocket::kIovMax];
  uint32_t entry = first;  // the entry that the next byte belongs to, and its position there
  uint64_t position = 0;
  while (entry < end) {
    size_t count = 0, wanted = 0;
    uint64_t from = position;
    for (uint32_t i = entry; i < end && count < ServerSocket::kIovMax && wanted < kReceiveBytes;
         ++i, from = 0) {
      const size_t size = std::min<uint64_t>(put_.length(i) - from, kReceiveBytes - wanted);
      if (size == 0) continue;
      vectors[count++] = {writes_[i].data != nullptr ? writes_[i].data + from : discard_area(), size};
      wanted += size;
    }
    size_t got = count == 0 ? 0 : socket.read_some(vectors, count, deadline);
    for (; entry < end; ++entry, position = 0) {
      WriteEntry& write = writes_[entry];
      const uint64_t left = put_.length(entry) - position;
      const size_t step = std::min<uint64_t>(left, got);
      if (write.data != nullptr) write.digest = crc32c(write.digest, write.data + position, step);
      got -= step;
      if (step < left) {
        position += step;
        break;
      }
    }
  }
}

void PutTransfer::pull(RegisteredBuffers& buffers, const PullPieces& pieces) {
  check_pieces(pieces, size_t{pieces.per_entry} * put_.entry_count(), buffers.usable_bytes(pieces.buffer_id));
  const uint32_t n = put_.entry_count();
  for (uint32_t first = 0; first < n;) {
    const uint32_t end = reserve_window(first, kPullWindowBytes);
    for (; first < end; ++first) {
      WriteEntry& write = writes_[first];
      if (write.data == nullptr) continue;
      uint8_t* to = write.data;
      for (uint32_t p = 0; p < pieces.per_entry; ++p) {
        const size_t piece = size_t{first} * pieces.per_entry + p;
        if (!buffers.copy(pieces.buffer_id, pieces.offset(piece), pieces.size(piece), to, write.digest))
          write.digest_refused =
              true;  // the file shrank under us: these are not the bytes that were promised
        to += pieces.size(piece);
      }
      if (pieces.digests != nullptr && write.digest != pieces.digest(first)) write.digest_refused = true;
    }
  }
}

void PutTransfer::pull(RemoteMemory& memory, const PullPieces& pieces) {
  const uint32_t n = put_.entry_count();
  check_pieces(pieces, size_t{pieces.per_entry} * n, memory.usable_bytes(pieces.buffer_id));
  const auto deadline = transfer_deadline(put_.total_bytes) + wait_left_;
  std::vector<RemoteMemory::Read> reads;
  for (uint32_t first = 0; first < n;) {
    const uint32_t end = reserve_window(first, kPullWindowBytes);
    reads.clear();
    for (uint32_t i = first; i < end; ++i) {
      uint8_t* to = writes_[i].data;
      if (to == nullptr) continue;
      for (uint32_t p = 0; p < pieces.per_entry; ++p) {
        const size_t piece = size_t{i} * pieces.per_entry + p;
        if (pieces.size(piece) > 0) reads.push_back({pieces.offset(piece), pieces.size(piece), to});
        to += pieces.size(piece);
      }
    }
    memory.read(pieces.buffer_id, reads, deadline);
    for (; first < end; ++first) {
      WriteEntry& write = writes_[first];
      if (write.data == nullptr) continue;
      write.digest = crc32c(0, write.data, put_.length(first));
      write.digest_refused = write.digest != pieces.digest(first);
    }
  }
}

uint64_t PutTransfer::seal() {
  const uint64_t seq = store_.seal_writes(put_, writes_);
  // Before the reply: the commit that covers this may come by another connection as soon as the writer has it.
  batch_.end_put(seq);
  sealed_ = true;
  share_.give_back_all();
  return seq;
}

SegmentStore::Statuses PutTransfer::statuses() const {
  SegmentStore::Statuses out(writes_.size());
  for (size_t i = 0; i < writes_.size(); ++i) out[i] = static_cast<uint8_t>(writes_[i].status);
  return out;
}

}  // namespace kvstore
