#include "transports/ucx/client/session.hpp"

#include <poll.h>

#include <algorithm>

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;

}  // namespace

UcxClientSession::UcxClientSession(FrameConnection& connection, UcxShared& shared)
    : connection_(connection),
      shared_(shared),
      worker_(shared.ucx),
      scratch_(shared.ucx, kGenerationsMax * sizeof(uint64_t)) {}

NetStatus UcxClientSession::of(FrameConnection& connection, UcxShared& shared, const PeerId& pool_id,
                               const Deadline& deadline, UcxClientSession** out) {
  // Connections of a pool that this transport leases from have no other companion.
  *out = static_cast<UcxClientSession*>(connection.companion());
  if (*out != nullptr) return NetStatus::kOk;
  if ((connection.features() & rdma_codec::kFeatureRdma) == 0) return NetStatus::kUnreachable;
  NetStatus status = NetStatus::kUnreachable;
  try {
    // Taking a worker apart takes longer than a caller that gives up has left.
    WorkerPool& workers = shared.context.workers;
    std::shared_ptr<UcxClientSession> session(
        new UcxClientSession(connection, shared), [&workers](UcxClientSession* last) {
          try {
            workers.post([last] { delete last; });
          } catch (...) {  // out of memory for the task: late is better than leaked
            delete last;
          }
        });
    status = session->connect(pool_id, deadline);
    if (status == NetStatus::kOk) {
      *out = session.get();
      connection.set_companion(std::move(session));
    }
  } catch (const UcxError&) {
    shared.failures.add();
  }
  return status;
}

NetStatus UcxClientSession::connect(const PeerId& pool_id, const Deadline& deadline) {
  wire::Writer body(8 + worker_.address().size());
  rdma_codec::write_connect(body, worker_.address());
  uint32_t id = 0;
  FrameReply reply;
  NetStatus status =
      connection_.send_request(rdma_codec::kOpConnect, body.data(), body.size(), 0, deadline, &id);
  if (status == NetStatus::kOk)
    status = connection_.receive_reply(rdma_codec::kOpConnect, id, rdma_codec::kConnectFieldsBytes, deadline,
                                       &reply);
  if (status != NetStatus::kOk) return status;
  if (reply.status != Status::kOk) return NetStatus::kUnreachable;
  try {
    pool_ = rdma_codec::read_connect_reply(reply);
  } catch (const wire::WireError&) {
    return NetStatus::kProtocol;
  }
  if (pool_.geometry.pool_id != pool_id) return NetStatus::kProtocol;
  endpoint_ = std::make_unique<UcxEndpoint>(worker_, pool_.worker_address);
  key_ = std::make_unique<UcxEndpoint::RemoteKey>(*endpoint_, pool_.key);
  return NetStatus::kOk;
}

void UcxClientSession::read(void* to, size_t size, uint64_t offset, const UcxMemory& local) {
  endpoint_->read(to, size, pool_.map_address + offset, *key_, local);
}

NetStatus UcxClientSession::finish(const Deadline& deadline) {
  const Deadline::Wait waiting(deadline);
  UcxWorker::Woken woken;
  do {
    // A segment that was killed shows on the socket at once; a device finds out after many retries.
    woken = worker_.work_until([&] { return endpoint_->settled(); }, waiting.slice_end(), connection_.fd(),
                               POLLRDHUP);
  } while (woken == UcxWorker::Woken::kDeadline && !waiting.over());
  if (woken == UcxWorker::Woken::kDone && !endpoint_->failed()) {
    deadline.moved();
    return NetStatus::kOk;
  }
  endpoint_->close();
  if (woken == UcxWorker::Woken::kDeadline) return NetStatus::kTimeout;
  if (woken == UcxWorker::Woken::kDone) shared_.failures.add();
  return NetStatus::kClosed;
}

NetStatus UcxClientSession::read_generations(const std::vector<uint32_t>& slots, const Deadline& deadline,
                                             std::vector<uint64_t>* generations) {
  const data_codec::PoolGeometry& g = pool_.geometry;
  auto* into = reinterpret_cast<uint64_t*>(scratch_.data());
  for (size_t i = 0; i < slots.size(); ++i)
    read(into + i, sizeof(uint64_t), g.table_offset + uint64_t{slots[i]} * g.slot_bytes, scratch_.memory());
  const NetStatus status = finish(deadline);
  if (status == NetStatus::kOk) generations->assign(into, into + slots.size());
  return status;
}

UcxBuffer* UcxClientSession::bounce() {
  if (bounce_ == nullptr && !bounce_refused_) {
    try {
      bounce_ = std::make_unique<UcxBuffer>(shared_.ucx, kBounceBytes);
    } catch (const std::exception&) {
      bounce_refused_ = true;
      shared_.registration_failures.add();
    }
  }
  return bounce_.get();
}

NetStatus UcxClientSession::register_with_segment(const UcxMemory& memory, const Deadline& deadline,
                                                  uint32_t* buffer_id) {
  *buffer_id = 0;
  wire::Writer body(24 + memory.remote_key().size());
  rdma_codec::write_register(body, memory.address(), memory.size_bytes(), memory.remote_key());
  uint32_t id = 0;
  FrameReply reply;
  NetStatus status =
      connection_.send_request(rdma_codec::kOpRegister, body.data(), body.size(), 0, deadline, &id);
  if (status == NetStatus::kOk)
    status = connection_.receive_reply(rdma_codec::kOpRegister, id, 8, deadline, &reply);
  if (status != NetStatus::kOk || reply.status != Status::kOk) return status;
  try {
    *buffer_id = reply.reader().u32("buffer_id");
  } catch (const wire::WireError&) {
    return NetStatus::kProtocol;
  }
  return NetStatus::kOk;
}

NetStatus UcxClientSession::register_bounce(const Deadline& deadline) {
  if (bounce_buffer_id_ != 0 || bounce() == nullptr) return NetStatus::kOk;
  return register_with_segment(bounce_->memory(), deadline, &bounce_buffer_id_);
}

uint8_t* UcxClientSession::next_bounce_part() {
  bounce_part_ = (bounce_part_ + 1) % kBounceParts;
  return bounce_->data() + bounce_part_ * kBouncePartBytes;
}

}  // namespace kvstore
