#include "segment/link/conversation.hpp"

#include <algorithm>
#include <utility>

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;

[[noreturn]] void nonsense(const std::string& what) {
  throw LinkEnded("protocol", "the master breaks the protocol of the link: " + what);
}

}  // namespace

LinkConversation::LinkConversation(JournalPump& pump, const LinkOptions& options,
                                   std::function<HeartbeatMessage()> usage, TimePoint now)
    : pump_(pump), options_(options), usage_(std::move(usage)), next_heartbeat_(now), silent_since_(now) {}

void LinkConversation::received(const uint8_t* data, size_t size, TimePoint now) {
  silent_since_ = now;
  buffer_.insert(buffer_.end(), data, data + size);
  size_t at = 0;
  try {
    while (buffer_.size() - at >= wire::kHeaderBytes) {
      const wire::Header header = wire::decode_header(buffer_.data() + at);
      if (header.version != wire::kFrameVersion || header.payload_bytes != 0 ||
          header.body_bytes > kLinkNoticeBodyBytesMax)
        nonsense("a frame of version " + std::to_string(header.version) + ", " +
                 std::to_string(header.body_bytes) + " body bytes (at most " +
                 std::to_string(kLinkNoticeBodyBytesMax) + ") and " + std::to_string(header.payload_bytes) +
                 " payload bytes (none)");
      if (buffer_.size() - at - wire::kHeaderBytes < header.body_bytes) break;
      const wire::Reader body(buffer_.data() + at + wire::kHeaderBytes, header.body_bytes);
      at += wire::kHeaderBytes + header.body_bytes;
      if (header.is_reply())
        handle_reply(header, body, now);
      else
        handle_notice(header.op, body);
    }
  } catch (const wire::WireError& e) {
    nonsense(e.what());
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at));
}

void LinkConversation::handle_reply(const wire::Header& header, wire::Reader body, TimePoint now) {
  if (asked_.empty() || static_cast<uint8_t>(asked_.front().first) != header.op ||
      asked_.front().second != header.request_id)
    nonsense("a reply (op " + std::to_string(header.op) + ") to no request");
  const Op op = asked_.front().first;
  asked_.pop_front();
  const wire::ReplyPrefix prefix = wire::read_reply_prefix(body);
  if (prefix.status != Status::kOk)
    throw LinkEnded("refused", "the master refuses the link (status " +
                                   std::to_string(static_cast<int>(prefix.status)) +
                                   "): " + std::string(prefix.text));
  if (op == Op::kHello) {
    const uint8_t version = body.u8("version");
    if (version < wire::kVersionMin || version > wire::kVersionMax)
      nonsense("it speaks version " + std::to_string(version));
    body.bytes(3 + 4 + 4 + 8, "caps");
    const uint8_t* peer = body.bytes(options_.cluster_id.size(), "peer_id");
    if (!std::equal(options_.cluster_id.begin(), options_.cluster_id.end(), peer))
      throw LinkEnded("refused", "what answers at the master's directory port is of another cluster");
  } else if (op == Op::kLink) {
    pump_.attached(options_.durable_seq, options_.need_inventory);
    linked_ = true;
    next_heartbeat_ = now;
  } else {
    heartbeat_asked_ = false;
  }
}

void LinkConversation::handle_notice(uint8_t op, wire::Reader body) {
  if (!linked_) nonsense("op " + std::to_string(op) + " before the link was answered");
  if (op == static_cast<uint8_t>(Op::kAck)) {
    const AckMessage ack = read_ack(body);
    if (ack.taken < bulk_taken_ || ack.taken > bulk_sent_)
      nonsense("it took " + std::to_string(ack.taken) + " messages, after " + std::to_string(bulk_taken_) +
               " and of " + std::to_string(bulk_sent_));
    bulk_taken_ = ack.taken;
    pump_.acked(ack.durable_seq);
  } else if (op == static_cast<uint8_t>(Op::kRequestInventory)) {
    pump_.inventory_requested();
  } else if (op == static_cast<uint8_t>(Op::kEntriesRefused)) {
    const EntriesRefusedMessage refused = read_entries_refused(body);
    pump_.count_refused(refused.entries);
    if (refusals_.size() >= kRefusalsKept) refusals_.pop_front();
    refusals_.push_back({refused.last_seq, refused.entries, std::string(refused.reason)});
  }
  // Anything else comes from a newer master: ignored, as the protocol asks.
}

bool LinkConversation::wants_journal() const {
  return bulk_has_room() && pump_.state() == JournalPump::State::kStreaming && !pump_.window_full();
}

bool LinkConversation::has_inventory_to_send() const {
  return bulk_has_room() && pump_.state() == JournalPump::State::kInventory;
}

void LinkConversation::fill(std::vector<uint8_t>& out, bool may_send_bulk, bool journal_due, TimePoint now) {
  if (!asked_.empty() && now - silent_since_ >= options_.silence_timeout)
    throw LinkEnded("silent", "the master has not answered for " +
                                  std::to_string(options_.silence_timeout.count()) + " ms");
  const auto ask = [&](Op op) {
    if (asked_.empty()) silent_since_ = now;
    asked_.emplace_back(op, next_request_id_);
    return next_request_id_++;
  };
  if (!greeted_) {
    greeted_ = true;
    write_hello_frame(out, ask(Op::kHello), wire::Role::kSegment, options_.token, options_.name,
                      options_.cluster_id);
    write_link_frame(out, ask(Op::kLink), options_.link_token);
  }
  if (!linked_) return;
  // An answer that takes long delays the next heartbeat, and never doubles it.
  if (!heartbeat_asked_ && now >= next_heartbeat_) {
    write_heartbeat_frame(out, ask(Op::kHeartbeat), usage_());
    heartbeat_asked_ = true;
    ++heartbeats_sent_;
    // From when it was due: a slow answer does not stretch the rhythm.
    next_heartbeat_ = std::max(next_heartbeat_ + options_.heartbeat_interval, now);
  }
  if (!may_send_bulk || !(has_inventory_to_send() || (journal_due && wants_journal()))) return;
  const std::optional<JournalPump::Message> message = pump_.next_message();
  if (!message) return;
  ++bulk_sent_;
  if (message->kind == JournalPump::Kind::kBatch)
    write_journal_frame(out, next_request_id_++, message->first_seq, message->last_seq, message->groups);
  else
    write_inventory_frame(out, next_request_id_++, message->last_seq, message->first, message->last,
                          message->groups);
}

LinkConversation::TimePoint LinkConversation::next_deadline() const {
  TimePoint next = TimePoint::max();
  if (!asked_.empty()) next = silent_since_ + options_.silence_timeout;
  if (linked_ && !heartbeat_asked_) next = std::min(next, next_heartbeat_);
  return next;
}

}  // namespace kvstore
