#include "transports/ucx/segment/session.hpp"

#include <poll.h>

#include "segment/data_port/socket.hpp"

namespace kvstore {
namespace {

// Reads in flight at a time: enough to fill any wire, few enough to break off quickly.
constexpr size_t kReadsInFlightMax = 256;

}  // namespace

UcxPool::UcxPool(const std::string& library_path, const SegmentStore& store)
    : context_(UcxContext::open(library_path)),
      store_(store),
      memory_(context_, store.pool().base(), store.pool().map_bytes()) {}

rdma_codec::RemotePool UcxPool::describe(const UcxWorker& worker) const {
  rdma_codec::RemotePool pool;
  pool.geometry = {store_.pool().map_bytes(), 0, store_.wire_slots_end(), sizeof(SlotHeader),
                   store_.pool_id()};
  pool.map_address = memory_.address();
  pool.worker_address = worker.address();
  pool.key = memory_.remote_key();
  return pool;
}

UcxSegmentSession::UcxSegmentSession(UcxPool& pool, const std::vector<uint8_t>& client_address, int socket)
    : pool_(pool), socket_(socket), worker_(pool.context()), endpoint_(worker_, client_address) {
  pool_.sessions.fetch_add(1, std::memory_order_relaxed);
}

UcxSegmentSession::~UcxSegmentSession() { pool_.sessions.fetch_sub(1, std::memory_order_relaxed); }

uint32_t UcxSegmentSession::add(const rdma_codec::Registration& registration) {
  const uint32_t id = buffers_.add(registration.address, registration.bytes);
  try {
    keys_.try_emplace(id, endpoint_, registration.key);
  } catch (const UcxError& e) {
    buffers_.remove(id);
    throw wire::WireError(wire::Status::kBadRequest, e.what());
  }
  return id;
}

void UcxSegmentSession::remove(uint32_t buffer_id) {
  buffers_.remove(buffer_id);
  keys_.erase(buffer_id);
}

uint64_t UcxSegmentSession::usable_bytes(uint32_t buffer_id) const { return buffers_.at(buffer_id).bytes; }

void UcxSegmentSession::give_up(bool failed, const char* why) {
  endpoint_.close();  // from here on nothing writes into the pool's slots
  // A writer that has gone is no failure of RDMA's.
  pollfd item{socket_, POLLRDHUP, 0};
  const bool gone = ::poll(&item, 1, 0) > 0 && (item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  if (failed && !gone) pool_.failures.fetch_add(1, std::memory_order_relaxed);
  throw ConnectionEnded(why);
}

void UcxSegmentSession::read(uint32_t buffer_id, const std::vector<Read>& reads, Clock::time_point deadline) {
  const RemoteBuffers::Buffer& buffer = buffers_.at(buffer_id);
  const UcxEndpoint::RemoteKey& key = keys_.at(buffer_id);
  uint64_t bytes = 0;
  for (const Read& r : reads) bytes += r.size;
  size_t next = 0;
  const auto advance = [&] {
    while (next < reads.size() && endpoint_.in_flight() < kReadsInFlightMax) {
      const Read& r = reads[next];
      if (!endpoint_.read(r.to, r.size, buffer.address + r.offset, key, pool_.memory())) return true;
      ++next;
    }
    return endpoint_.failed() || (next == reads.size() && endpoint_.in_flight() == 0);
  };
  switch (worker_.work_until(advance, deadline, socket_, POLLRDHUP)) {
    case UcxWorker::Woken::kSocket:
      give_up(false, "the writer gave up while its memory was being read");
    case UcxWorker::Woken::kDeadline:
      give_up(true, "reading the writer's memory makes no progress");
    case UcxWorker::Woken::kDone:
      if (endpoint_.failed()) give_up(true, "reading the writer's memory failed");
  }
  pool_.pulled_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace kvstore
