// Moves the bytes of a put into the store: received from the socket (PUT), or copied or read by RDMA out of a
// registered buffer (PULL). Slots are reserved a window ahead of the bytes, and within the budget of what puts may
// have under way; from a socket none before its bytes begin to come, so that announcing them costs nobody any
// memory. Digests are computed on the bytes while they are hot, and whatever was not sealed is given back when the
// transfer object goes, however that comes about.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "protocol/put_request.hpp"
#include "segment/data_port/registered_buffers.hpp"
#include "segment/data_port/remote_memory.hpp"
#include "segment/data_port/socket.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {

// The pieces of a PULL: n x pieces offsets and sizes in one registered buffer.
struct PullPieces {
  uint32_t buffer_id = 0;
  uint32_t per_entry = 0;
  const uint8_t* offsets = nullptr;  // u64 each
  const uint8_t* sizes = nullptr;    // u32 each
  const uint8_t* digests =
      nullptr;  // u32 an entry, or null: the writer trusts the memory that it shares with the segment

  uint64_t offset(size_t piece) const;
  uint32_t size(size_t piece) const;
  uint32_t digest(size_t entry) const;
};
// Throws wire::WireError when it is short, over a cap, or the pieces of an entry do not add up to its length.
PullPieces read_pull_pieces(wire::Reader& reader, const PutRequest& put, bool with_digests);

// One thread's, for one put.
class PutTransfer {
 public:
  // `cancelled` stops waiting for space. `batch`: what the put belongs to. Everything referenced outlives the transfer.
  PutTransfer(SegmentStore& store, const PutRequest& put, const std::atomic<bool>& cancelled,
              PutBatch& batch);
  ~PutTransfer();
  PutTransfer(const PutTransfer&) = delete;
  PutTransfer& operator=(const PutTransfer&) = delete;

  // Takes the payload off the socket to its last byte, whatever becomes of the entries. Throws
  // ConnectionEnded, also when no byte has come for `stall`.
  void receive(ServerSocket& socket, std::chrono::milliseconds stall);
  // Throws wire::WireError before anything is copied when a piece lies outside its buffer.
  void pull(RegisteredBuffers& buffers, const PullPieces& pieces);
  // The same out of memory elsewhere; compares the writer's digests. Throws ConnectionEnded too.
  void pull(RemoteMemory& memory, const PullPieces& pieces);
  // Seals what arrived whole. Returns the journal number after which the batch is durable.
  uint64_t seal();

  // After seal(): wire::Status, one an entry.
  SegmentStore::Statuses statuses() const;

 private:
  // Returns the end of the window, which has at least one entry and ends when it has `bytes`.
  uint32_t reserve_window(uint32_t first, uint64_t bytes);
  uint64_t budgeted_bytes(uint32_t entry) const;
  // Time that goes by in it counts as waiting for space.
  template <typename Wait>
  void waiting(Wait&& wait);
  void receive_window(ServerSocket& socket, uint32_t first, uint32_t end,
                      ServerSocket::Clock::time_point deadline);

  SegmentStore& store_;
  const PutRequest& put_;
  const std::atomic<bool>& cancelled_;
  PutBatch& batch_;
  bool sealed_ = false;
  SegmentStore::Clock::duration wait_left_;  // time that may still be spent waiting for space
  std::vector<WriteEntry> writes_;
  BudgetShare share_;  // of the bytes that are reserved
};

}  // namespace kvstore
