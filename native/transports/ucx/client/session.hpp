// RDMA of one data connection, on the client's side: a worker and the way to the segment's worker, made with the connection's first
// use and gone with the connection.
//
// One thread at a time: whoever has the connection.
#pragma once

#include <memory>
#include <vector>

#include "transports/ucx/client/shared.hpp"
#include "transports/ucx/core/codec.hpp"
#include "transports/ucx/core/endpoint.hpp"

namespace kvstore {

class UcxClientSession : public SocketCompanion {
 public:
  // Memory of our own through which pages go that are not registered, in parts of which each has one user at a time.
  static constexpr size_t kBouncePartBytes = 4u << 20;
  static constexpr size_t kBounceParts = 4;
  static constexpr size_t kBounceBytes = kBounceParts * kBouncePartBytes;
  // Slots whose generation is read at a time.
  static constexpr size_t kGenerationsMax = 1024;

  // The session of this connection, agreed on with the segment (RDMA_CONNECT) where there is none yet. kUnreachable: the segment
  // does not offer it or can't be reached by it, and the connection is good for everything else; other failures are the
  // connection's. No reply may be outstanding.
  static NetStatus of(FrameConnection& connection, UcxShared& shared, const PeerId& pool_id,
                      const Deadline& deadline, UcxClientSession** out);

  UcxClientSession(FrameConnection& connection, UcxShared& shared);

  bool advance() override { return worker_.advance(); }
  int event_fd() const override { return worker_.event_fd(); }

  const data_codec::PoolGeometry& geometry() const { return pool_.geometry; }

  // Starts a read of [offset, +size) of the pool's map into `to`, which lies in `local`. finish() tells how it went.
  void read(void* to, size_t size, uint64_t offset, const UcxMemory& local);
  // Waits for all reads. On anything but kOk they have been broken off, nothing writes to their memory any more, and the
  // connection must not be kept.
  NetStatus finish(const Deadline& deadline);
  // The generations of at most kGenerationsMax slots as they are now; as finish().
  NetStatus read_generations(const std::vector<uint32_t>& slots, const Deadline& deadline,
                             std::vector<uint64_t>* generations);

  // Null when it can't be had, which is counted.
  UcxBuffer* bounce();
  // Makes our memory known to the segment, so that it can pull from it. *buffer_id is 0 when the segment won't have it.
  NetStatus register_with_segment(const UcxMemory& memory, const Deadline& deadline, uint32_t* buffer_id);
  // The bounce memory's buffer at the segment; 0: none.
  uint32_t bounce_buffer_id() const { return bounce_buffer_id_; }
  NetStatus register_bounce(const Deadline& deadline);
  // The next part of the bounce memory, in turn.
  uint8_t* next_bounce_part();

 private:
  NetStatus connect(const PeerId& pool_id, const Deadline& deadline);

  FrameConnection& connection_;
  UcxShared& shared_;
  UcxWorker worker_;
  UcxBuffer scratch_;
  std::unique_ptr<UcxBuffer> bounce_;
  bool bounce_refused_ = false;
  uint32_t bounce_buffer_id_ = 0;
  size_t bounce_part_ = 0;
  rdma_codec::RemotePool pool_;
  std::unique_ptr<UcxEndpoint> endpoint_;
  std::unique_ptr<UcxEndpoint::RemoteKey> key_;
};

}  // namespace kvstore
