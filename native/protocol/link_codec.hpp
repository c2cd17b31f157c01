// Messages of the link between a segment and the master that has registered it (docs/protocol.md section 9). Thread-safe, no IO.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/wire.hpp"

namespace kvstore {

using LinkToken = std::array<uint8_t, 16>;

// What a master sends on a link has at most this much body: the segment refuses more before it allocates.
constexpr uint32_t kLinkNoticeBodyBytesMax = 64u << 10;
constexpr uint8_t kInventoryFirst = 1;
constexpr uint8_t kInventoryLast = 2;

// A cap of a segment's, and how much of it is used.
struct BudgetMessage {
  uint64_t used = 0;
  uint64_t limit = 0;
  uint64_t refused = 0;  // since its start
};

struct HeartbeatMessage {
  uint64_t used_bytes = 0;
  uint64_t object_count = 0;
  uint64_t pinned_bytes = 0;
  uint64_t quarantined_slots = 0;
  uint64_t digest_mismatches = 0;
  uint64_t evicted_objects = 0;
  std::vector<BudgetMessage> budgets;  // in the order of docs/protocol.md section 9
};

struct AckMessage {
  uint64_t durable_seq;
  uint64_t taken;
};

struct EntriesRefusedMessage {
  uint64_t last_seq;
  uint32_t entries;
  std::string_view reason;  // into the body
};

// Each appends a whole frame to `out`.
void write_hello_frame(std::vector<uint8_t>& out, uint32_t request_id, wire::Role role,
                       std::string_view token, std::string_view name, const LinkToken& expected_peer);
void write_link_frame(std::vector<uint8_t>& out, uint32_t request_id, const LinkToken& token);
void write_journal_frame(std::vector<uint8_t>& out, uint32_t request_id, uint64_t first_seq,
                         uint64_t last_seq, const std::vector<uint8_t>& groups);
void write_inventory_frame(std::vector<uint8_t>& out, uint32_t request_id, uint64_t last_seq, bool first,
                           bool last, const std::vector<uint8_t>& groups);
void write_heartbeat_frame(std::vector<uint8_t>& out, uint32_t request_id, const HeartbeatMessage& message);

// The bodies of what comes back. Throw WireError.
AckMessage read_ack(wire::Reader body);
EntriesRefusedMessage read_entries_refused(wire::Reader body);

}  // namespace kvstore
