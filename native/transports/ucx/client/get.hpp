// Reads located objects out of a segment's pool into the caller's pieces, and serves only those whose slot has not changed meanwhile
// and whose bytes have their digest.
//
// Bytes go straight into registered memory; into memory that is not registered, or in small pieces, by way of the session's bounce
// memory, where the copy and the digest are one pass.
#pragma once

#include <utility>
#include <vector>

#include "client/transport.hpp"
#include "protocol/data_codec.hpp"
#include "transports/ucx/client/session.hpp"

namespace kvstore {

// One thread's, for one stripe of a get.
class UcxGet {
 public:
  UcxGet(UcxClientSession& session, TransportBatch& batch, UcxShared& shared, const Deadline& deadline)
      : session_(session), batch_(batch), shared_(shared), deadline_(deadline) {}

  bool needs_bounce(const std::vector<EntryRun>& runs);
  // Sets the statuses of those entries that it got to. On anything but kOk nothing writes to the caller's memory any more.
  NetStatus fetch(const std::vector<uint32_t>& entries, const std::vector<data_codec::Location>& locations);

 private:
  struct Item {
    uint32_t entry;
    const data_codec::Location* location;
    const uint8_t* bounced;  // null: read into the pieces
  };
  // Of the memory that a piece lies in; null: not registered, or too small a piece.
  const UcxMemory* memory_of(const iovec& piece);
  bool is_direct(uint32_t entry);
  void start_direct(uint32_t entry, uint64_t offset);
  NetStatus finish(const std::vector<Item>& items);
  NetStatus fetch_large(uint32_t entry, const data_codec::Location& location);
  void conclude(uint32_t entry, const data_codec::Location& location, uint64_t generation, uint32_t crc);

  UcxClientSession& session_;
  TransportBatch& batch_;
  UcxShared& shared_;
  const Deadline deadline_;
  std::vector<std::shared_ptr<const UcxMemory>>
      memories_;  // used so far, and kept for the length of the call
};

}  // namespace kvstore
