// What a segment is told to copy from another one, and what has become of it. Values.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "protocol/keys.hpp"
#include "protocol/reply.hpp"
#include "protocol/wire.hpp"

namespace kvstore {

struct CopyOrder {
  // The segment that has the objects. Its unix socket is tried first where there is one by that path.
  std::string host;
  uint16_t port = 0;
  std::string unix_path;
  PeerId pool_id{};  // that must be there: whoever else listens at that address is not asked
  NamespaceId ns{};
  std::vector<Fingerprint> fingerprints;  // wire::kFetchEntriesMax at most; the first are copied first
  // Whether others may be evicted for them. If not, what the evictor keeps free ahead is left alone, too.
  bool may_evict = false;
  uint64_t bytes_per_s = 0;  // 0: as fast as it goes
  std::chrono::milliseconds timeout{60000};
};

struct CopyOutcome {
  // One a fingerprint, wire::Status: OK it was copied and is in the directory, EXISTS it was here already, and is in the directory;
  // NOT_COMMITTED it is here, and the directory has not confirmed it yet; MISS the other segment has it no more; NO_SPACE,
  // DIGEST_MISMATCH, CONFLICT as of a put; STALE_NAMESPACE; UNAVAILABLE it was not got to: order it again.
  std::vector<uint8_t> statuses;
  uint64_t copied_bytes = 0;
  std::string trouble;  // why the other segment gave no answer; empty: it did
};

}  // namespace kvstore
