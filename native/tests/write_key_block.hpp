// A key block as docs/protocol.md section 3 writes it: what the tests send, in a hand of their own.
#pragma once

#include "protocol/keys.hpp"
#include "protocol/wire.hpp"

namespace kvstore::testing {

inline void write_key_block(wire::Writer& writer, const KeyBlock& block) {
  writer.raw(block.ns.data(), kNamespaceBytes)
      .u16(block.pool)
      .u16(static_cast<uint16_t>(block.shard_count))
      .u32(block.key_count)
      .raw(block.shards, size_t{block.shard_count} * kShardBytes)
      .raw(block.hashes, size_t{block.key_count} * kHashBytes);
}

}  // namespace kvstore::testing
