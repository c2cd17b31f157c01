// RDMA at a segment: the pool that clients read from, and one session for each connection that asked for it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "segment/data_port/extension.hpp"
#include "segment/segment_store.hpp"
#include "transports/ucx/core/codec.hpp"
#include "transports/ucx/core/endpoint.hpp"

namespace kvstore {

// The pool's registration: readable for peers, writable for nobody but the segment. Thread-safe; outlives its sessions.
class UcxPool {
 public:
  // Pins the whole pool. Throws UcxError.
  UcxPool(const std::string& library_path, const SegmentStore& store);

  const std::shared_ptr<UcxContext>& context() const { return context_; }
  const UcxMemory& memory() const { return memory_; }
  rdma_codec::RemotePool describe(const UcxWorker& worker) const;

  // Sessions there are now; a session counts itself.
  std::atomic<uint32_t> sessions{0};
  std::atomic<uint64_t> sessions_total{0}, pulled_bytes{0}, failures{0};

 private:
  const std::shared_ptr<UcxContext> context_;
  const SegmentStore& store_;
  const UcxMemory memory_;
};

// RDMA of one connection: a worker of its own, so that nothing is shared between sessions and all of it ends with the connection.
// The session's thread alone uses it, and keeps the worker going while it waits for requests.
class UcxSegmentSession final : public SessionPart, public RemoteMemory {
 public:
  // Throws UcxError when the client can't be reached.
  UcxSegmentSession(UcxPool& pool, const std::vector<uint8_t>& client_address, int socket);
  ~UcxSegmentSession() override;

  rdma_codec::RemotePool describe() const { return pool_.describe(worker_); }
  SocketCompanion* companion() override { return &worker_; }
  RemoteMemory* memory() override { return this; }

  // Throws wire::WireError.
  uint32_t add(const rdma_codec::Registration& registration);

  void remove(uint32_t buffer_id) override;
  uint64_t usable_bytes(uint32_t buffer_id) const override;
  // Breaks off when the client closes its end of the connection.
  void read(uint32_t buffer_id, const std::vector<Read>& reads, Clock::time_point deadline) override;

 private:
  [[noreturn]] void give_up(bool failed, const char* why);

  UcxPool& pool_;
  const int socket_;
  UcxWorker worker_;
  UcxEndpoint endpoint_;
  RemoteBuffers buffers_;
  std::map<uint32_t, UcxEndpoint::RemoteKey> keys_;
};

}  // namespace kvstore
