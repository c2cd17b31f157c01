#include "client/connection/registrations.hpp"

#include <algorithm>

#include "client/connection/run_sender.hpp"

namespace kvstore {
namespace {

bool still_registered(uint64_t id, const TransportContext& context) {
  return context.registered.current(id) || RegisteredMemory::shared_buffers().current(id);
}

}  // namespace

size_t pull_run_entries_max(const TransportBatch& batch) {
  size_t pieces = 1;
  for (uint32_t shard = 0; shard < batch.keys->shard_count; ++shard)
    pieces = std::max(pieces, batch.memory->piece_count(shard));
  return std::clamp<size_t>(kPullRunPieces / pieces, 1, kRunEntriesMax);
}

std::shared_ptr<const RegisteredRange> registered_range_of(const void* address,
                                                           const TransportContext& context) {
  const auto at = reinterpret_cast<uint64_t>(address);
  auto range = context.registered.find(at);
  return range != nullptr ? range : RegisteredMemory::shared_buffers().find(at);
}

NetStatus unregister_stale(FrameConnection& connection, const TransportContext& context,
                           const Deadline& deadline) {
  auto& known = connection.registrations();
  for (size_t i = 0; i < known.size();) {
    if (still_registered(known[i].registration, context)) {
      ++i;
      continue;
    }
    if (!known[i].refused) {
      wire::Writer body(4);
      body.u32(known[i].buffer_id);
      uint32_t id = 0;
      FrameReply reply;
      NetStatus status =
          connection.send_request(wire::Op::kUnregister, body.data(), body.size(), 0, deadline, &id);
      if (status == NetStatus::kOk)
        status = connection.receive_reply(wire::Op::kUnregister, id, 0, deadline, &reply);
      if (status != NetStatus::kOk) return status;
    }
    known.erase(known.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return NetStatus::kOk;
}

NetStatus register_range(FrameConnection& connection, const RegisteredRange& range,
                         const TransportContext& context, const Deadline& deadline) {
  auto& known = connection.registrations();
  const auto is_this = [&](const auto& one) { return one.registration == range.id; };
  if (std::any_of(known.begin(), known.end(), is_this)) return NetStatus::kOk;
  if (known.size() >= kRegistrationsMax) {
    context.counters.add(Counter::kRegistrationsRefused);
    return NetStatus::kOk;
  }
  wire::Writer body(16);
  body.u64(range.size_bytes).u32(0).u32(0);
  uint32_t id = 0;
  FrameReply reply;
  NetStatus status = connection.send_request_with_descriptor(wire::Op::kRegister, body.data(), body.size(),
                                                             range.fd, deadline, &id);
  if (status == NetStatus::kOk)
    status = connection.receive_reply(wire::Op::kRegister, id, 8, deadline, &reply);
  if (status != NetStatus::kOk) return status;
  if (reply.status != wire::Status::kOk) {
    context.counters.add(Counter::kRegistrationsRefused);
    known.push_back({range.id, 0, true});
    return NetStatus::kOk;
  }
  try {
    known.push_back({range.id, reply.reader().u32("buffer_id")});
  } catch (const wire::WireError&) {
    return NetStatus::kProtocol;
  }
  return NetStatus::kOk;
}

std::optional<uint32_t> registered_as(const FrameConnection& connection, const RegisteredRange& range) {
  for (const auto& known : connection.registrations())
    if (known.registration == range.id && !known.refused) return known.buffer_id;
  return std::nullopt;
}

}  // namespace kvstore
