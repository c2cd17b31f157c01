// What a link says, and what it makes of a master that says what it should not. No sockets, and a clock of the test's own.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "segment/link/conversation.hpp"
#include "segment/link/link_master.hpp"
#include "segment/object_fixture.hpp"
#include "segment/store_journal_source.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using std::chrono::milliseconds;
using wire::Op;
using wire::Status;

namespace {

class Rig {
 public:
  explicit Rig(bool need_inventory = false, size_t batch_entries_max = 1000)
      : store(std::make_shared<SegmentStore>(small_store(8 << 20))),
        source(store),
        pump(source, batch_entries_max),
        conversation(
            pump, options(need_inventory), [] { return HeartbeatMessage{1, 2, 3, 4, 5, 6, {}}; }, now) {}

  static LinkOptions options(bool need_inventory) {
    LinkOptions o;
    o.name = "test";
    o.cluster_id = kCluster;
    o.link_token = kLinkToken;
    o.need_inventory = need_inventory;
    return o;
  }
  void put(int count) {
    for (int i = 0; i < count; ++i) put_one(*store, "k" + std::to_string(objects++), 100);
  }
  // What is said now.
  std::vector<Frame> said(bool may_send_bulk = true, bool journal_due = true) {
    std::vector<uint8_t> out;
    conversation.fill(out, may_send_bulk, journal_due, now);
    return take_frames(out);
  }
  void hear(const std::vector<uint8_t>& bytes) { conversation.received(bytes.data(), bytes.size(), now); }
  // Past HELLO, LINK and the first heartbeat.
  void link() {
    for (const Frame& request : said()) hear(answer(request));
    for (const Frame& frame : said(false))
      if (frame.is(Op::kHeartbeat)) hear(answer(frame));
  }
  // How it ends when this comes; "" when it goes on.
  std::string end_of(const std::vector<uint8_t>& bytes) {
    try {
      hear(bytes);
    } catch (const LinkEnded& e) {
      return e.kind;
    } catch (const JournalProtocolError&) {
      return "protocol";
    }
    return "";
  }

  LinkConversation::TimePoint now{};
  std::shared_ptr<SegmentStore> store;
  StoreJournalSource source;
  JournalPump pump;
  LinkConversation conversation;
  int objects = 0;
};

}  // namespace

TEST(hello_and_link_go_out_together_and_the_journal_when_both_are_answered) {
  Rig rig;
  rig.put(3);
  const auto first = rig.said();
  CHECK_EQ(first.size(), size_t{2});
  CHECK(first[0].is(Op::kHello) && first[1].is(Op::kLink));
  CHECK(std::equal(kLinkToken.begin(), kLinkToken.end(), first[1].body.begin()));
  CHECK(rig.said().empty());
  rig.hear(answer(first[0]));
  CHECK(!rig.conversation.linked() && rig.said().empty());
  const auto second = answer(first[1]);
  for (const uint8_t byte : second) rig.hear({byte});  // in whatever pieces it comes
  CHECK(rig.conversation.linked());
  const auto then = rig.said();
  CHECK_EQ(then.size(), size_t{2});
  CHECK(then[0].is(Op::kHeartbeat) && then[1].is(Op::kJournal));
  wire::Reader beat = then[0].reader();
  for (uint64_t i = 1; i <= 6; ++i) CHECK_EQ(beat.u64("number"), i);
  wire::Reader batch = then[1].reader();
  CHECK_EQ(batch.u64("first"), uint64_t{1});
  CHECK_EQ(batch.u64("last"), uint64_t{3});
  CHECK_EQ(batch.u32("bytes") + 8, static_cast<uint32_t>(batch.left() + 4));
  rig.hear(ack(3, 1));
  CHECK_EQ(rig.store->journal().acked_seq(), uint64_t{3});
}

TEST(a_journal_that_is_not_due_is_not_sent_and_neither_is_one_behind_what_is_still_on_its_way) {
  Rig rig;
  rig.link();
  rig.put(1);
  CHECK(rig.said(true, false).empty());
  CHECK(rig.said(false, true).empty());
  CHECK_EQ(rig.said(true, true).size(), size_t{1});
}

TEST(heartbeats_keep_their_rhythm_and_wait_for_no_bulk_but_for_their_own_answer) {
  Rig rig;
  rig.link();
  CHECK(rig.said(false).empty());
  CHECK(rig.conversation.next_deadline() == rig.now + milliseconds(1000));
  rig.now += milliseconds(1000);
  const auto beat = rig.said(false);  // bulk is stuck
  CHECK_EQ(beat.size(), size_t{1});
  CHECK(beat[0].is(Op::kHeartbeat));
  rig.now += milliseconds(1500);
  CHECK(rig.said(false).empty());
  rig.hear(answer(beat[0]));
  CHECK_EQ(rig.said(false).size(), size_t{1});  // it is overdue
  CHECK_EQ(rig.conversation.heartbeats_sent(), uint64_t{3});
}

TEST(an_inventory_stops_at_eight_messages_that_the_master_has_not_taken) {
  Rig rig(true, 2);
  rig.put(40);
  rig.link();
  size_t sent = 0;
  while (!rig.said().empty()) ++sent;
  CHECK_EQ(sent, size_t{8});
  CHECK(!rig.conversation.has_inventory_to_send());
  rig.hear(ack(0, 3));
  while (!rig.said().empty()) ++sent;
  CHECK_EQ(sent, size_t{11});
  while (rig.pump.state() == JournalPump::State::kInventory) {
    rig.hear(ack(0, sent));
    while (!rig.said().empty()) ++sent;
  }
  rig.hear(ack(40, sent));
  CHECK_EQ(rig.store->journal().acked_seq(), uint64_t{40});
  CHECK_EQ(rig.pump.inventories_sent(), uint64_t{1});
}

TEST(an_ack_of_what_this_link_has_not_carried_ends_it_and_confirms_nothing) {
  Rig rig;
  rig.link();
  rig.put(5);
  CHECK_EQ(rig.end_of(ack(1, 0)), std::string("protocol"));
  CHECK_EQ(rig.store->journal().acked_seq(), uint64_t{0});
  Rig taken;
  taken.link();
  taken.put(1);
  CHECK_EQ(taken.said().size(), size_t{1});
  CHECK_EQ(taken.end_of(ack(1, 1)), std::string());
  CHECK_EQ(taken.end_of(ack(1, 0)), std::string("protocol"));  // it takes nothing back
  Rig more;
  more.link();
  CHECK_EQ(more.end_of(ack(0, 1)), std::string("protocol"));
}

TEST(an_inventory_that_is_asked_for_is_sent_and_refused_entries_are_told_and_counted) {
  Rig rig;
  rig.link();
  rig.put(4);
  CHECK(rig.said()[0].is(Op::kJournal));
  rig.hear(notice(Op::kRequestInventory, wire::Writer()));
  const auto said = rig.said();
  CHECK_EQ(said.size(), size_t{1});
  CHECK(said[0].is(Op::kInventory));
  CHECK_EQ(said[0].reader().u64("last_seq"), uint64_t{4});
  CHECK_EQ(said[0].body[12], uint8_t{kInventoryFirst | kInventoryLast});
  for (int i = 0; i < 40; ++i)
    rig.hear(notice(Op::kEntriesRefused, wire::Writer().u64(4).u32(2).u16(4).u16(0).raw("long", 4)));
  CHECK_EQ(rig.pump.entries_refused(), uint64_t{80});
  const auto refusals = rig.conversation.take_refusals();
  CHECK_EQ(refusals.size(), LinkConversation::kRefusalsKept);
  CHECK_EQ(refusals[0].reason, std::string("long"));
  CHECK(rig.conversation.take_refusals().empty());
}

TEST(what_a_newer_master_says_is_ignored) {
  Rig rig;
  rig.link();
  CHECK_EQ(rig.end_of(frame_of(99, 0, 0, std::vector<uint8_t>(1000))), std::string());
  CHECK_EQ(rig.end_of(notice(Op::kAck, wire::Writer().u64(0).u64(0).raw("later", 5))), std::string());
}

TEST(a_refused_link_ends_with_the_words_of_the_master) {
  for (const Op refused : {Op::kHello, Op::kLink}) {
    Rig rig;
    const auto said = rig.said();
    try {
      for (const Frame& request : said)
        rig.hear(request.is(refused) ? answer(request, Status::kUnauthorized, "not you") : answer(request));
      CHECK(!"it goes on");
    } catch (const LinkEnded& e) {
      CHECK_EQ(std::string(e.kind), std::string("refused"));
      CHECK(std::string(e.what()).find("not you") != std::string::npos);
    }
    CHECK(!rig.conversation.linked());
  }
  Rig rig;
  const auto said = rig.said();
  LinkToken other = kCluster;
  other[0] ^= 1;
  CHECK_EQ(rig.end_of(answer(said[0], Status::kOk, "", other)), std::string("refused"));
}

TEST(frames_that_cannot_be_end_the_link) {
  const auto header = [](auto change) {
    wire::Header h;
    h.op = static_cast<uint8_t>(Op::kAck);
    change(h);
    std::vector<uint8_t> out(wire::kHeaderBytes);
    wire::encode_header(h, out.data());
    return out;
  };
  const std::vector<std::vector<uint8_t>> bad = {
      header([](wire::Header& h) { h.magic = 1; }),
      header([](wire::Header& h) { h.version = 9; }),
      header([](wire::Header& h) { h.body_bytes = kLinkNoticeBodyBytesMax + 1; }),
      header([](wire::Header& h) { h.body_bytes = UINT32_MAX; }),
      header([](wire::Header& h) { h.payload_bytes = 1; }),
      header([](wire::Header& h) { h.flags = wire::kFlagReply; }),  // to no request
      notice(Op::kAck, wire::Writer().u64(0)),                      // cut short
      notice(Op::kAck, wire::Writer()),                             //
      notice(Op::kEntriesRefused,
             wire::Writer().u64(0).u32(1).u16(9).u16(0).u8(0))  // a longer text than there is
  };
  for (const auto& bytes : bad) {
    Rig rig;
    rig.link();
    CHECK_EQ(rig.end_of(bytes), std::string("protocol"));
  }
  Rig early;
  early.said();
  CHECK_EQ(early.end_of(ack(0, 0)), std::string("protocol"));  // before the link is answered
}

TEST(a_master_that_owes_an_answer_and_says_nothing_for_four_seconds_is_left) {
  Rig rig;
  rig.said();
  CHECK(rig.conversation.next_deadline() == rig.now + milliseconds(4000));
  rig.now += milliseconds(3999);
  rig.said();
  rig.now += milliseconds(1);
  CHECK_THROWS(rig.said(), LinkEnded);

  Rig linked;
  linked.link();
  linked.now += milliseconds(60000);  // nothing is owed
  CHECK_EQ(linked.said(false).size(), size_t{1});
  linked.now += milliseconds(3000);
  linked.put(1);
  CHECK_EQ(linked.said().size(), size_t{1});
  linked.hear(ack(1, 1));  // a sign of life, though not the answer
  linked.now += milliseconds(3999);
  linked.said();
  linked.now += milliseconds(1);
  CHECK_THROWS(linked.said(), LinkEnded);
}

TEST(whatever_comes_a_link_goes_on_or_ends_and_never_confirms_what_it_has_not_sent) {
  const unsigned seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    Rig rig(random() % 2 == 0, 3);
    rig.put(static_cast<int>(random() % 20));
    std::vector<uint8_t> bytes;
    if (random() % 4 != 0) rig.link();
    uint64_t carried = 0;
    for (int step = 0; step < 12; ++step) {
      std::vector<std::vector<uint8_t>> frames = {ack(random() % 6, random() % 4),
                                                  notice(Op::kRequestInventory, wire::Writer()),
                                                  frame_of(static_cast<uint8_t>(random()), 0, 0, {})};
      auto next = frames[random() % frames.size()];
      if (random() % 8 == 0) next[random() % next.size()] ^= static_cast<uint8_t>(1u << (random() % 8));
      if (random() % 16 == 0) next.resize(random() % next.size());
      try {
        rig.said();
        rig.hear(next);
      } catch (const LinkEnded&) {
        break;
      } catch (const JournalProtocolError&) {
        break;
      }
      carried = std::max(carried, rig.pump.sent_seq());
      CHECK(rig.store->journal().acked_seq() <= carried);
    }
    CHECK(rig.store->journal().acked_seq() <= rig.store->journal().last_seq());
  }
}

TEST_MAIN()
