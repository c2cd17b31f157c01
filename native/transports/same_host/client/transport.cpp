#include "transports/same_host/client/transport.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/digest.hpp"
#include "client/connection/data_channel.hpp"
#include "client/connection/registrations.hpp"
#include "transports/same_host/client/attached_pool.hpp"
#include "transports/same_host/client/pull_sender.hpp"
#include "transports/same_host/client/staged_sender.hpp"

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;

// One LOCATE holds at most this much of the segment's memory against reuse.
constexpr RunLimits kLocateLimits{uint64_t{256} << 20, 16384};
// Below this a second copying thread costs more than it brings.
constexpr uint64_t kCopyShareBytesMin = 256u << 10;
// How much is copied between two looks at the clock.
constexpr size_t kCopyStepBytes = 1u << 20;

constexpr const char* kName = "same_host";
constexpr const char* kPulledBytes = "put_pulled_bytes";
constexpr const char* kStagedBytes = "put_staged_bytes";

class SameHostTransport : public Transport {
 public:
  SameHostTransport(const SegmentRecord& segment, TransportContext& context, bool put_digests)
      : context_(context),
        put_digests_(put_digests),
        channel_({"", 0, segment.unix_path}, segment.pool_id, context, kName),
        pulled_bytes_(context.counters.named(kPulledBytes)),
        staged_bytes_(context.counters.named(kStagedBytes)) {}

  const char* name() const override { return kName; }
  bool same_host() const override { return true; }
  NetStatus submit(TransportBatch& batch, const Deadline& deadline) override;
  NetStatus attach(const SegmentRecord& segment, const Deadline& deadline);

 private:
  NetStatus get(TransportBatch& batch, const Deadline& deadline);
  NetStatus get_located(TransportBatch& batch, const Deadline& deadline, std::vector<uint32_t>* refused);
  // What the segment holds for nobody for now goes over the socket.
  NetStatus get_refused(const std::vector<uint32_t>& refused, TransportBatch& batch,
                        const Deadline& deadline);
  NetStatus get_run(FrameConnection& connection, const EntryRun& run, TransportBatch& batch,
                    const Deadline& deadline, std::vector<uint32_t>* refused);
  void copy_entry(const data_codec::Location& location, uint32_t entry, TransportBatch& batch,
                  const Deadline& deadline);
  NetStatus put(TransportBatch& batch, const Deadline& deadline);

  TransportContext& context_;
  const bool put_digests_;
  DataChannel channel_;
  Count& pulled_bytes_;
  Count& staged_bytes_;
  std::unique_ptr<AttachedPool> pool_;
};

NetStatus SameHostTransport::attach(const SegmentRecord& segment, const Deadline& deadline) {
  ConnectionPool::Lease lease;
  NetStatus status = channel_.pool().acquire(deadline, &lease);
  if (status != NetStatus::kOk) return status;
  if ((lease->features() & wire::kFeatureUnix) == 0) return NetStatus::kUnreachable;
  uint32_t id = 0;
  int fd = -1;
  FrameReply reply;
  status = lease->send_request(Op::kAttach, nullptr, 0, 0, deadline, &id);
  if (status == NetStatus::kOk)
    status = lease->receive_reply_with_descriptor(Op::kAttach, id, data_codec::kAttachFieldsBytes, deadline,
                                                  &reply, &fd);
  if (status != NetStatus::kOk) return status;
  if (reply.status != Status::kOk || fd < 0) {
    if (fd >= 0) ::close(fd);
    return NetStatus::kUnreachable;
  }
  try {
    const data_codec::PoolGeometry geometry = data_codec::read_attach_reply(reply);
    if (geometry.pool_id == segment.pool_id) pool_ = AttachedPool::attach(std::exchange(fd, -1), geometry);
  } catch (const wire::WireError&) {
  }
  if (fd >= 0) ::close(fd);
  if (pool_ == nullptr) return NetStatus::kUnreachable;
  lease.keep();
  return NetStatus::kOk;
}

NetStatus SameHostTransport::submit(TransportBatch& batch, const Deadline& deadline) {
  switch (batch.kind) {
    case BatchKind::kGet:
      return get(batch, deadline);
    case BatchKind::kPut:
      return put(batch, deadline);
    default:
      return channel_.submit_statuses(batch, deadline);
  }
}

NetStatus SameHostTransport::put(TransportBatch& batch, const Deadline& deadline) {
  auto range = PullSender::range_of(batch, context_);
  if (range == nullptr) {
    uint64_t bytes = 0;
    for (const uint32_t entry : batch.entries) bytes += batch.memory->entry_bytes(entry);
    if (bytes < kStagedBatchBytesMin) return channel_.put(batch, deadline);
    StagedSender sender(batch, context_, channel_.bytes_put(), staged_bytes_);
    return channel_.put(batch, deadline, sender,
                        {std::min(context_.run_bytes, kStagedRunBytesMax), kRunEntriesMax});
  }
  PullSender sender(batch, std::move(range), context_, put_digests_, channel_.bytes_put(), pulled_bytes_);
  return channel_.put(batch, deadline, sender, {context_.run_bytes, pull_run_entries_max(batch)});
}

NetStatus SameHostTransport::get(TransportBatch& batch, const Deadline& deadline) {
  std::vector<uint32_t> refused;
  const NetStatus status = get_located(batch, deadline, &refused);
  return status != NetStatus::kOk || refused.empty() ? status : get_refused(refused, batch, deadline);
}

NetStatus SameHostTransport::get_located(TransportBatch& batch, const Deadline& deadline,
                                         std::vector<uint32_t>* refused) {
  ConnectionPool::Lease lease;
  NetStatus status = channel_.pool().acquire(deadline, &lease);
  batch.set_all(entry_status(status == NetStatus::kOk ? NetStatus::kClosed : status));
  if (status != NetStatus::kOk) return status;
  const std::vector<EntryBlock> blocks = make_blocks(batch.entries, batch.keys->shard_count);
  const auto stripes = cut_stripes(blocks, batch.keys->shard_count, 1, kLocateLimits,
                                   [&](uint32_t entry) { return batch.memory->entry_bytes(entry); });
  for (const EntryRun& run : stripes.front()) {
    status = get_run(*lease, run, batch, deadline, refused);
    if (status == NetStatus::kOk) continue;
    if (status == NetStatus::kTimeout)
      for (const uint32_t entry : batch.entries)
        if (batch.status(entry) == Status::kUnavailable) batch.set_status(entry, Status::kTimeout);
    return status;
  }
  lease.keep();
  return NetStatus::kOk;
}

NetStatus SameHostTransport::get_refused(const std::vector<uint32_t>& refused, TransportBatch& batch,
                                         const Deadline& deadline) {
  context_.counters.add(Counter::kLocatesRefused, refused.size());
  TransportBatch rest = batch;
  rest.entries = refused;
  std::sort(rest.entries.begin(), rest.entries.end());
  return channel_.get(rest, deadline);
}

NetStatus SameHostTransport::get_run(FrameConnection& connection, const EntryRun& run, TransportBatch& batch,
                                     const Deadline& deadline, std::vector<uint32_t>* refused) {
  DataChannel::Located located;
  const NetStatus status = channel_.locate(connection, run, batch, pool_->geometry(), deadline, &located);
  if (status != NetStatus::kOk || located.locations.empty()) return status;
  if (!pool_->is_whole()) return NetStatus::kClosed;  // a segment is nothing without its pool
  const std::vector<uint32_t>& entries = located.entries;
  for (size_t i = 0; i < entries.size(); ++i)
    if (located.locations[i].status == Status::kUnavailable) refused->push_back(entries[i]);

  // Every thread takes the next few entries until none are left, so that uneven sizes don't leave one of them idle.
  const size_t shares =
      std::clamp<uint64_t>(run.bytes / kCopyShareBytesMin, 1, std::max<size_t>(context_.copy_threads, 1));
  const size_t grain = std::max<size_t>(1, entries.size() / (shares * 8));
  std::atomic<size_t> next{0};
  context_.workers.run(shares, [&](size_t) {
    for (size_t begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < entries.size();)
      for (size_t i = begin; i < std::min(begin + grain, entries.size()); ++i)
        copy_entry(located.locations[i], entries[i], batch, deadline);
  });

  // The map of a dead segment stays readable; only the socket tells that nobody stands behind these bytes any more.
  if (!connection.peer_open()) {
    for (const uint32_t entry : entries) batch.set_status(entry, Status::kUnavailable);
    return NetStatus::kClosed;
  }
  return channel_.unpin(connection, located,
                        deadline);  // a copy that ran out of time is not the segment's fault
}

void SameHostTransport::copy_entry(const data_codec::Location& location, uint32_t entry,
                                   TransportBatch& batch, const Deadline& deadline) {
  if (location.status != Status::kOk) {
    batch.set_status(entry, location.status);
    return;
  }
  const uint64_t length = batch.memory->entry_bytes(entry);
  const AttachedPool::Use object = pool_->use(location.offset, length);
  const uint8_t* from = object.data();
  if (from == nullptr) return;  // checked when the reply was read; an entry is UNAVAILABLE until it is here
  uint32_t crc = 0;
  size_t until_clock = 0;
  for (size_t j = 0; j < batch.memory->piece_count(entry); ++j) {
    const iovec piece = batch.memory->piece(entry, j);
    for (size_t done = 0; done < piece.iov_len;) {
      if (until_clock == 0) {
        if (deadline.expired()) {
          batch.set_status(entry, Status::kTimeout);
          return;
        }
        deadline.moved();
        until_clock = kCopyStepBytes;
      }
      const size_t step = std::min(piece.iov_len - done, until_clock);
      crc = copy_crc32c(crc, static_cast<uint8_t*>(piece.iov_base) + done, from, step);
      from += step, done += step, until_clock -= step;
    }
  }
  if (pool_->generation(location.slot) != location.generation) {
    batch.set_status(entry, Status::kMiss);
    context_.counters.add(Counter::kGenerationMismatches);
  } else if (crc != location.digest) {
    batch.set_status(entry, Status::kDigestMismatch);
    context_.counters.add(Counter::kDigestMismatches);
  } else {
    batch.set_status(entry, Status::kOk);
    channel_.bytes_get().add(length);
  }
}

class SameHostFactory : public TransportFactory {
 public:
  SameHostFactory(TransportContext& context, bool put_digests)
      : context_(context), put_digests_(put_digests) {}

  // Null unless the unix path of the map leads to the pool that the map promises, and that pool can be attached.
  std::unique_ptr<Transport> open(const SegmentRecord& segment, const Deadline& deadline,
                                  NetStatus* why) override {
    *why = NetStatus::kUnreachable;
    if (segment.unix_path.empty()) return nullptr;
    auto transport = std::make_unique<SameHostTransport>(segment, context_, put_digests_);
    *why = transport->attach(segment, deadline);
    if (*why != NetStatus::kOk) return nullptr;
    return transport;
  }
  bool near(const SegmentRecord& segment) const override {
    return !segment.unix_path.empty() && ::access(segment.unix_path.c_str(), W_OK) == 0;
  }

 private:
  TransportContext& context_;
  const bool put_digests_;
};

std::unique_ptr<TransportFactory> make_same_host(TransportContext& context, const DeclaredOptions& options,
                                                 std::string*) {
  if (!options.flag("same_host")) return nullptr;
  return std::make_unique<SameHostFactory>(context, options.flag("put_digests"));
}

}  // namespace

TransportType same_host_transport() {
  return {
      kName,
      30,
      TransportType::Reach::kSameHost,
      {{"same_host", "true", "whether the shared memory of segments on this host may be used"},
       {"put_digests", "false",
        "whether segments on this host compare what they copy out of registered memory with a digest of the "
        "writer's"}},
      {{kPulledBytes, "of transport_same_host_bytes_put: copied by the segment out of registered memory"},
       {kStagedBytes,
        "of transport_same_host_bytes_put: copied by this side into memory shared with the segment first"}},
      make_same_host};
}

}  // namespace kvstore
