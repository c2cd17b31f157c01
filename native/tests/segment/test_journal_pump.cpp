// What a segment says next, and what it makes of its master's answers: no entry is left out, and no more than a window is on its way.
#include <algorithm>
#include <vector>

#include "check.hpp"
#include "segment/journal_pump.hpp"

using namespace kvstore;

namespace {

// Entries without content, of which the oldest can be lost.
struct Source : JournalSource {
  uint64_t last = 0;
  uint64_t oldest_kept = 1;
  uint64_t handed_out = 0;
  uint64_t acked = 0;
  size_t objects = 0;  // that an inventory has, in slices of one byte each
  size_t listed = 0;

  uint64_t last_seq() override { return last; }
  std::optional<Journal::Batch> drain(size_t entries_max) override {
    if (handed_out == last) return std::nullopt;
    const uint64_t first = std::max(handed_out + 1, oldest_kept);
    handed_out = std::min<uint64_t>(first + entries_max - 1, last);
    return Journal::Batch{first, handed_out, {1}};
  }
  void ack(uint64_t seq) override { acked = std::max(acked, seq); }
  bool rewind(uint64_t seq) override {
    if (seq + 1 < oldest_kept) return false;
    handed_out = seq;
    return true;
  }
  uint64_t begin_inventory() override {
    listed = 0;
    return handed_out = last;
  }
  bool next_inventory_slice(size_t, std::vector<uint8_t>& groups) override {
    if (listed < objects) groups.push_back(1), ++listed;
    return listed == objects;
  }
};

struct Rig {
  Source source;
  JournalPump pump{source, 10, 3};

  // The next is entries first to last.
  void expect_batch(uint64_t first, uint64_t last) {
    const auto message = pump.next_message();
    CHECK(message && message->kind == JournalPump::Kind::kBatch);
    if (!message) return;
    CHECK_EQ(message->first_seq, first);
    CHECK_EQ(message->last_seq, last);
  }
  // The next is an inventory of so many chunks, which stands for the entries up to `last_seq`.
  void expect_inventory(uint64_t last_seq, size_t chunks) {
    for (size_t i = 0; i < chunks; ++i) {
      const auto message = pump.next_message();
      CHECK(message && message->kind == JournalPump::Kind::kChunk);
      if (!message) return;
      CHECK_EQ(message->last_seq, last_seq);
      CHECK_EQ(message->first, i == 0);
      CHECK_EQ(message->last, i == chunks - 1);
    }
    CHECK(pump.state() == JournalPump::State::kStreaming);
  }
  void expect_nothing() { CHECK(!pump.next_message()); }
};

}  // namespace

TEST(entries_go_out_in_order_and_what_is_durable_is_told_to_the_store) {
  Rig rig;
  rig.source.last = 25;
  rig.expect_nothing();  // nobody is there
  rig.pump.attached(0, false);
  rig.expect_batch(1, 10);
  rig.expect_batch(11, 20);
  rig.expect_batch(21, 25);
  rig.expect_nothing();
  rig.pump.acked(20);
  CHECK_EQ(rig.source.acked, uint64_t{20});
  CHECK_EQ(rig.pump.durable_seq(), uint64_t{20});
  rig.source.last = 26;
  rig.expect_batch(26, 26);
}

TEST(no_more_than_a_window_is_on_its_way) {
  Rig rig;
  rig.source.last = 100;
  rig.pump.attached(0, false);
  for (uint64_t i = 0; i < 3; ++i) rig.expect_batch(10 * i + 1, 10 * i + 10);
  rig.expect_nothing();
  rig.pump.acked(9);  // no batch is durable whole
  rig.expect_nothing();
  rig.pump.acked(20);  // two are
  rig.expect_batch(31, 40);
  rig.expect_batch(41, 50);
  rig.expect_nothing();
}

TEST(an_inventory_that_is_asked_for_waits_for_no_window) {
  Rig rig;
  rig.source.last = 100;
  rig.source.objects = 2;
  rig.pump.attached(0, false);
  for (uint64_t i = 0; i < 3; ++i) rig.expect_batch(10 * i + 1, 10 * i + 10);
  rig.pump.inventory_requested();
  rig.expect_inventory(100, 2);
  rig.expect_nothing();  // it stands for all
  rig.pump.acked(100);
  CHECK_EQ(rig.source.acked, uint64_t{100});
}

TEST(a_stream_that_was_lost_is_taken_up_behind_what_is_durable) {
  Rig rig;
  rig.source.last = 30;
  rig.pump.attached(0, false);
  for (uint64_t i = 0; i < 3; ++i) rig.expect_batch(10 * i + 1, 10 * i + 10);
  rig.pump.acked(10);
  rig.pump.detached();
  rig.pump.acked(30);  // too late
  CHECK_EQ(rig.source.acked, uint64_t{10});
  rig.expect_nothing();
  rig.pump.attached(10, false);
  rig.expect_batch(11, 20);
  rig.expect_batch(21, 30);
}

TEST(where_the_journal_does_not_reach_back_the_inventory_stands_for_it) {
  Rig rig;
  rig.source.last = 50;
  rig.source.oldest_kept = 30;
  rig.source.objects = 3;
  rig.pump.attached(20, false);
  rig.expect_inventory(50, 3);
  CHECK_EQ(rig.pump.gaps(), uint64_t{0});  // nothing was lost on the way
  Rig asked;
  asked.source.last = 5;
  asked.pump.attached(5, true);
  asked.expect_inventory(5, 1);  // an empty segment says so too
}

TEST(a_master_that_is_ahead_knows_another_life_of_this_memory) {
  Rig rig;
  rig.source.last = 5;
  rig.source.objects = 1;
  rig.pump.attached(9, false);
  CHECK_EQ(rig.source.acked, uint64_t{0});
  rig.expect_inventory(5, 1);
}

TEST(a_gap_in_the_middle_is_mended_by_an_inventory_and_counted) {
  Rig rig;
  rig.source.last = 10;
  rig.source.objects = 1;
  rig.pump.attached(0, false);
  rig.expect_batch(1, 10);
  rig.source.last = 60;
  rig.source.oldest_kept = 40;
  rig.expect_inventory(60, 1);
  CHECK_EQ(rig.pump.gaps(), uint64_t{1});
  rig.source.last = 61;
  rig.expect_batch(61, 61);
}

TEST(an_ack_of_what_was_never_sent_is_refused_and_confirms_nothing) {
  Rig rig;
  rig.source.last = 30;
  rig.pump.attached(0, false);
  rig.expect_batch(1, 10);
  CHECK_THROWS(rig.pump.acked(11), JournalProtocolError);
  CHECK_EQ(rig.source.acked, uint64_t{0});
  rig.pump.acked(10);
  rig.pump.acked(4);  // an older one that comes late takes nothing back
  CHECK_EQ(rig.source.acked, uint64_t{10});
  CHECK_EQ(rig.pump.durable_seq(), uint64_t{10});
}

TEST_MAIN()
