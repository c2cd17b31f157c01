#include "protocol/link_codec.hpp"

namespace kvstore {
namespace {

void begin_frame(std::vector<uint8_t>& out, wire::Op op, uint32_t request_id, size_t body_bytes) {
  wire::Header header;
  header.op = static_cast<uint8_t>(op);
  header.request_id = request_id;
  header.body_bytes = static_cast<uint32_t>(body_bytes);
  const size_t at = out.size();
  out.reserve(at + wire::kHeaderBytes + body_bytes);
  out.resize(at + wire::kHeaderBytes);
  wire::encode_header(header, out.data() + at);
}

void write_frame(std::vector<uint8_t>& out, wire::Op op, uint32_t request_id, const wire::Writer& head,
                 const std::vector<uint8_t>& rest = {}) {
  begin_frame(out, op, request_id, head.size() + rest.size());
  out.insert(out.end(), head.data(), head.data() + head.size());
  out.insert(out.end(), rest.begin(), rest.end());
}

}  // namespace

void write_hello_frame(std::vector<uint8_t>& out, uint32_t request_id, wire::Role role,
                       std::string_view token, std::string_view name, const LinkToken& expected_peer) {
  wire::Writer body;
  body.u8(wire::kVersionMin).u8(wire::kVersionMax).u8(static_cast<uint8_t>(role)).u8(0);
  body.u16(static_cast<uint16_t>(token.size())).u16(static_cast<uint16_t>(name.size()));
  body.raw(expected_peer.data(), expected_peer.size());
  body.raw(token.data(), token.size()).raw(name.data(), name.size());
  write_frame(out, wire::Op::kHello, request_id, body);
}

void write_link_frame(std::vector<uint8_t>& out, uint32_t request_id, const LinkToken& token) {
  wire::Writer body;
  body.raw(token.data(), token.size());
  write_frame(out, wire::Op::kLink, request_id, body);
}

void write_journal_frame(std::vector<uint8_t>& out, uint32_t request_id, uint64_t first_seq,
                         uint64_t last_seq, const std::vector<uint8_t>& groups) {
  wire::Writer head;
  head.u64(first_seq).u64(last_seq).u32(static_cast<uint32_t>(groups.size())).u32(0);
  write_frame(out, wire::Op::kJournal, request_id, head, groups);
}

void write_inventory_frame(std::vector<uint8_t>& out, uint32_t request_id, uint64_t last_seq, bool first,
                           bool last, const std::vector<uint8_t>& groups) {
  wire::Writer head;
  const int flags = (first ? kInventoryFirst : 0) | (last ? kInventoryLast : 0);
  head.u64(last_seq).u32(static_cast<uint32_t>(groups.size())).u8(static_cast<uint8_t>(flags)).zeros(3);
  write_frame(out, wire::Op::kInventory, request_id, head, groups);
}

void write_heartbeat_frame(std::vector<uint8_t>& out, uint32_t request_id, const HeartbeatMessage& message) {
  wire::Writer body;
  body.u64(message.used_bytes).u64(message.object_count).u64(message.pinned_bytes);
  body.u64(message.quarantined_slots).u64(message.digest_mismatches).u64(message.evicted_objects);
  if (!message.budgets.empty()) body.u32(static_cast<uint32_t>(message.budgets.size())).u32(0);
  for (const BudgetMessage& budget : message.budgets)
    body.u64(budget.used).u64(budget.limit).u64(budget.refused);
  write_frame(out, wire::Op::kHeartbeat, request_id, body);
}

AckMessage read_ack(wire::Reader body) {
  const uint64_t durable_seq = body.u64("durable_seq");
  return {durable_seq, body.u64("taken")};
}

EntriesRefusedMessage read_entries_refused(wire::Reader body) {
  EntriesRefusedMessage message{};
  message.last_seq = body.u64("last_seq");
  message.entries = body.u32("entries");
  const uint16_t reason_bytes = body.u16("reason_bytes");
  body.u16("reserved");
  message.reason = body.text(reason_bytes, "reason");
  return message;
}

}  // namespace kvstore
