// The way from a worker to one peer's worker: one-sided reads of the peer's memory.
//
// Belongs to the thread that uses the worker. After close(), and when the object is gone, nothing that was started writes to local
// memory any more.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transports/ucx/core/worker.hpp"

namespace kvstore {

// Nothing of a peer's making is longer than this.
constexpr size_t kUcxAddressBytesMax = 16384;
constexpr size_t kUcxRemoteKeyBytesMax = 4096;

class UcxEndpoint {
 public:
  // `address` is the peer's worker's. Throws UcxError when no transport of ours reaches it.
  UcxEndpoint(UcxWorker& worker, const std::vector<uint8_t>& address);
  ~UcxEndpoint();
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  // The right to read one stretch of the peer's memory. Goes before the endpoint does.
  class RemoteKey {
   public:
    // Throws UcxError.
    RemoteKey(UcxEndpoint& endpoint, const std::vector<uint8_t>& packed);
    ~RemoteKey();
    RemoteKey(const RemoteKey&) = delete;
    RemoteKey& operator=(const RemoteKey&) = delete;

   private:
    friend class UcxEndpoint;
    UcxEndpoint& endpoint_;
    ucx::RemoteKey* handle_ = nullptr;
  };

  // Starts a read into `to`, which lies in `local`. False, and nothing started, once the endpoint has failed.
  bool read(void* to, size_t size, uint64_t remote_address, const RemoteKey& key, const UcxMemory& local);
  size_t in_flight() const { return in_flight_; }
  // An operation or the peer failed: the endpoint is of no more use.
  bool failed() const { return failed_; }
  // Nothing in flight, or nothing more to hope for.
  bool settled() const { return in_flight_ == 0 || failed_; }

  // Breaks off what is in flight and waits until it has ended, however long that takes: only then is the memory free of
  // writers. (Cancelling single operations does nothing in UCX.) Idempotent.
  void close();

 private:
  static void completed(void* request, ucx::Status status, void* self);
  static void peer_failed(void* self, ucx::Endpoint* endpoint, ucx::Status status);

  UcxWorker& worker_;
  ucx::Endpoint* handle_ = nullptr;
  size_t in_flight_ = 0;
  bool failed_ = false;
};

}  // namespace kvstore
