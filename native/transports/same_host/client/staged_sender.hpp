// Puts from memory that no segment can map: this side copies a run into memory that it shares with the segment, which
// pulls it from there while the next run is copied. Two plain copies on two cores, where a socket makes both of them in
// the kernel, in small steps.
#pragma once

#include <memory>

#include "base/socket_companion.hpp"
#include "client/connection/put_stripe.hpp"
#include "client/connection/run_sender.hpp"
#include "client/shared_buffer.hpp"

namespace kvstore {

// What a run may have at most to be staged.
constexpr uint64_t kStagedRunBytesMax = 1u << 20;
// A batch below this is not worth the memory of a connection's first.
constexpr uint64_t kStagedBatchBytesMin = 256u << 10;

// The shared memory of one connection: a place for each run that may be on its way. One thread at a time.
class StagingArea final : public SocketCompanion {
 public:
  // Throws std::system_error where the memory can't be had.
  StagingArea() : buffer_(kPutWindow * kStagedRunBytesMax) {}

  const SharedBuffer& buffer() const { return buffer_; }
  // The place of the run before the last kPutWindow - 1 ones: it was answered, or the next could not be sent.
  uint8_t* next_place() {
    return static_cast<uint8_t*>(buffer_.data()) + (runs_++ % kPutWindow) * kStagedRunBytesMax;
  }

  bool advance() override { return true; }  // needs nothing done for it
  int event_fd() const override { return -1; }

 private:
  SharedBuffer buffer_;
  uint64_t runs_ = 0;
};

// Serves the stripes of one put concurrently. Runs that can't be staged go over the socket.
class StagedSender : public RunSender {
 public:
  // `moved` counts the bytes, `staged` those of them that went by shared memory.
  StagedSender(const TransportBatch& batch, const TransportContext& context, Count& moved, Count& staged)
      : batch_(batch), context_(context), moved_(moved), staged_(staged), socket_sender_(batch, moved) {}

  // Makes the connection's staging area, and has the segment map it.
  NetStatus prepare(FrameConnection& connection, const Deadline& deadline) override;
  NetStatus send(FrameConnection& connection, const EntryRun& run, const data_codec::PutFields& fields,
                 const Deadline& deadline, wire::Op* op, uint32_t* request_id) override;

 private:
  // False: the deadline came first.
  bool copy(uint32_t entry, uint8_t* to, const Deadline& deadline, uint32_t* digest) const;

  const TransportBatch& batch_;
  const TransportContext& context_;
  Count& moved_;
  Count& staged_;
  SocketRunSender socket_sender_;
};

}  // namespace kvstore
