// The part that PUT and PULL have in common: put head, key block, lengths, depths, texts, intent (docs/protocol.md
// section 6).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "protocol/keys.hpp"
#include "protocol/wire.hpp"

namespace kvstore {

// Views into the request body, which must outlive it.
struct PutRequest {
  bool ack_committed = false;
  bool has_digests = false;  // of a PULL
  bool has_intent = false;
  wire::KeepWish keep;  // of all entries, where it has one
  uint32_t commit_timeout_ms = 0;
  KeyBlock block;
  std::vector<Fingerprint> fingerprints;
  uint64_t total_bytes = 0;  // of all entries

  uint32_t entry_count() const { return block.entry_count(); }
  uint32_t length(uint32_t entry) const { return wire::u32_at(lengths, entry); }
  uint32_t depth(uint32_t entry) const {
    return depths == nullptr ? 0 : wire::u32_at(depths, entry / block.shard_count);
  }
  std::string_view text(uint32_t entry) const {
    return texts.empty() ? std::string_view{} : texts[entry / block.shard_count];
  }

  const uint8_t* lengths = nullptr;     // u32 an entry
  const uint8_t* depths = nullptr;      // u32 a key, or null
  std::vector<std::string_view> texts;  // one a key, or none
};

// Throws wire::WireError when the body is short or a cap is exceeded.
PutRequest read_put_request(wire::Reader& reader);

}  // namespace kvstore
