// What a link says and hears, without its IO: bytes and the time in, bytes out. Docs/protocol.md section 9.
//
//     greeting: HELLO and LINK sent --both answered--> linked
//
// Linked, heartbeats go ahead of journal and inventory, of which one message at a time is handed out, so that a
// heartbeat waits behind no more than that one. At most kUntakenMax of them are on their way before the master has
// taken them (an inventory is confirmed only at its end): a master whose store is slow is sent no more than that.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "protocol/link_codec.hpp"
#include "segment/journal_pump.hpp"

namespace kvstore {

// Why a link is over, in words for the log. `kind` is one word and does not change with the words.
class LinkEnded : public std::runtime_error {
 public:
  LinkEnded(const char* kind_in, const std::string& text) : std::runtime_error(text), kind(kind_in) {}
  const char* kind;
};

struct LinkOptions {
  std::string token;
  std::string name;        // of the segment, for the master's log
  LinkToken cluster_id{};  // that the master must be of
  LinkToken link_token{};  // of the session that has registered the segment
  uint64_t durable_seq = 0;
  bool need_inventory = false;
  std::chrono::milliseconds heartbeat_interval{1000};
  // A master that owes an answer and says nothing at all for so long is left.
  std::chrono::milliseconds silence_timeout{4000};
};

class LinkConversation {
 public:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;
  static constexpr uint64_t kUntakenMax = 8;
  static constexpr size_t kRefusalsKept = 16;

  struct Refusal {
    uint64_t last_seq;
    uint32_t entries;
    std::string reason;
  };

  // `usage` is asked at each heartbeat. Pump and options are used by the calling thread alone.
  LinkConversation(JournalPump& pump, const LinkOptions& options, std::function<HeartbeatMessage()> usage,
                   TimePoint now);

  // What came, in pieces of any size. Throws LinkEnded, and JournalProtocolError of the pump.
  void received(const uint8_t* data, size_t size, TimePoint now);
  // Appends what is to be sent now. `may_send_bulk`: all that was handed out before is on its way. `journal_due`: the
  // journal says that there is something worth sending. Throws LinkEnded when the master has been silent for too
  // long.
  void fill(std::vector<uint8_t>& out, bool may_send_bulk, bool journal_due, TimePoint now);
  // When fill() has something to do that no event announces.
  TimePoint next_deadline() const;

  bool linked() const { return linked_; }
  // Whether an entry that becomes due could be sent.
  bool wants_journal() const;
  // Whether there is more to send at once.
  bool has_inventory_to_send() const;
  uint64_t heartbeats_sent() const { return heartbeats_sent_; }
  // What the master refused since it was asked last; the newest, where there was more than kRefusalsKept.
  std::deque<Refusal> take_refusals() { return std::exchange(refusals_, {}); }

 private:
  void handle_reply(const wire::Header& header, wire::Reader body, TimePoint now);
  void handle_notice(uint8_t op, wire::Reader body);
  void link();
  bool bulk_has_room() const { return linked_ && bulk_sent_ - bulk_taken_ < kUntakenMax; }

  JournalPump& pump_;
  const LinkOptions options_;
  const std::function<HeartbeatMessage()> usage_;
  std::vector<uint8_t> buffer_;  // what came and is no whole frame yet
  uint32_t next_request_id_ = 1;
  bool greeted_ = false;  // HELLO and LINK are out
  bool linked_ = false;
  std::deque<std::pair<wire::Op, uint32_t>> asked_;  // requests without a reply yet
  bool heartbeat_asked_ = false;
  TimePoint next_heartbeat_;
  TimePoint silent_since_;  // the last sign of life, or when the first of what is owed was asked for
  uint64_t heartbeats_sent_ = 0;
  uint64_t bulk_sent_ = 0, bulk_taken_ = 0;  // messages
  std::deque<Refusal> refusals_;
};

}  // namespace kvstore
