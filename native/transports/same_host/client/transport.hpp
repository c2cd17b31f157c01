// A segment on this host: gets are copied out of its pool, which is mapped read-only; puts are copied by the segment out of
// registered memory, or sent over its unix socket. Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "client/connection/data_channel.hpp"
#include "client/transport.hpp"
#include "transports/same_host/client/attached_pool.hpp"

namespace kvstore {

class SameHostTransport : public Transport {
 public:
  // Null unless the unix path of the map leads to the pool that the map promises, and that pool can be attached.
  static std::unique_ptr<Transport> open(const SegmentRecord& segment, TransportContext& context,
                                         const Deadline& deadline, NetStatus* why);

  const char* name() const override { return "same_host"; }
  bool same_host() const override { return true; }
  NetStatus submit(TransportBatch& batch, const Deadline& deadline) override;

 private:
  SameHostTransport(const SegmentRecord& segment, TransportContext& context);
  NetStatus attach(const SegmentRecord& segment, const Deadline& deadline);
  NetStatus get(TransportBatch& batch, const Deadline& deadline);
  NetStatus get_run(FrameConnection& connection, const EntryRun& run, TransportBatch& batch,
                    const Deadline& deadline);
  void copy_entry(const data_codec::Location& location, uint32_t entry, TransportBatch& batch,
                  const Deadline& deadline);
  NetStatus put(TransportBatch& batch, const Deadline& deadline);

  TransportContext& context_;
  DataChannel channel_;
  std::unique_ptr<AttachedPool> pool_;
};

}  // namespace kvstore
