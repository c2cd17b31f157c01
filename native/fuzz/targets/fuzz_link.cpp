// What a master says on a link, in pieces of any size and at any time: the link goes on or ends with a reason, and whatever was said,
// the journal is whole for the next master.
#include <algorithm>

#include "fuzz.hpp"
#include "segment/link/conversation.hpp"
#include "segment/link/link_master.hpp"

namespace kvstore::fuzz {
namespace {

using std::chrono::milliseconds;
using testing::Frame;
using wire::Op;

constexpr size_t kEntries = 40;

// A journal, and an inventory in slices.
class Source final : public JournalSource {
 public:
  Source() : journal_(1000) {
    std::vector<JournalEntry> entries(kEntries);
    for (size_t i = 0; i < kEntries; ++i)
      entries[i] = {{i, i}, {}, 100, i % 5 == 4 ? JournalOp::kRemove : JournalOp::kAdd};
    journal_.append(entries);
  }
  uint64_t last_seq() override { return journal_.last_seq(); }
  std::optional<Journal::Batch> drain(size_t entries_max) override { return journal_.drain(entries_max); }
  void ack(uint64_t seq) override { journal_.ack(seq); }
  bool rewind(uint64_t seq) override { return journal_.rewind(seq); }
  uint64_t begin_inventory() override {
    slices_ = 0;
    return journal_.skip_to_end();
  }
  bool next_inventory_slice(size_t, std::vector<uint8_t>& groups) override {
    const JournalEntry entry{{slices_, 1}, {}, 10, JournalOp::kAdd};
    write_journal_groups(&entry, 1, groups);
    return ++slices_ == 3;
  }
  uint64_t acked() const { return journal_.acked_seq(); }

 private:
  Journal journal_;
  uint64_t slices_ = 0;
};

LinkOptions options() {
  LinkOptions o;
  o.name = "segment";
  o.cluster_id = testing::kCluster;
  o.link_token = testing::kLinkToken;
  return o;
}

HeartbeatMessage usage() { return {}; }

// Plays an honest master until everything is durable; what it says goes to `said`, if anybody wants it.
void serve_honestly(JournalPump& pump, Source& source, Bytes* said) {
  const LinkConversation::TimePoint begin{};
  LinkOptions o = options();
  o.durable_seq = source.acked();
  o.need_inventory = said != nullptr;
  LinkConversation conversation(pump, o, usage, begin);
  uint64_t taken = 0;
  for (int turn = 0; turn < 60 && (turn < 3 || source.acked() < source.last_seq()); ++turn) {
    Bytes out;
    conversation.fill(out, true, true, begin);
    Bytes answers;
    const auto say = [&](const Bytes& frame) { answers.insert(answers.end(), frame.begin(), frame.end()); };
    for (const Frame& frame : testing::take_frames(out)) {
      if (frame.is(Op::kJournal) || frame.is(Op::kInventory)) {
        wire::Reader body = frame.reader();
        const uint64_t first = body.u64("first"), last = body.u64("last");
        const bool inventory_ends = frame.is(Op::kInventory) && (frame.body[12] & kInventoryLast) != 0;
        ++taken;
        if (frame.is(Op::kJournal)) say(testing::ack(last, taken));
        if (frame.is(Op::kInventory)) say(testing::ack(inventory_ends ? first : source.acked(), taken));
      } else {
        say(testing::answer(frame));
      }
    }
    conversation.received(answers.data(), answers.size(), begin);
    if (said != nullptr) said->insert(said->end(), answers.begin(), answers.end());
  }
  pump.detached();
}

}  // namespace

std::vector<Seed> seeds() {
  std::vector<Seed> seeds;
  Source source;
  JournalPump pump(source, 10);
  Bytes said{255, 0};
  serve_honestly(pump, source, &said);
  HOLDS(source.acked() == kEntries);
  seeds.push_back({"an_honest_master", said});
  said[0] = 3;
  for (const Golden& golden : golden_frames())
    if (golden.kind == "notice") {
      Bytes bytes = said;
      bytes.insert(bytes.begin() + 150, golden.frame.begin(), golden.frame.end());
      seeds.push_back({golden.name, bytes});
      bytes = said;
      bytes.insert(bytes.end(), golden.frame.begin(), golden.frame.end());
      seeds.push_back({golden.name + "_at_the_end", bytes});
    }
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  Input input(data, size);
  const size_t piece = 1 + size_t{input.take<uint8_t>()} * 4;
  const auto step = milliseconds(input.take<uint8_t>());
  Source source;
  JournalPump pump(source, 10);
  LinkConversation::TimePoint now{};
  LinkOptions o = options();
  o.need_inventory = size % 2 == 0;
  LinkConversation conversation(pump, o, usage, now);
  try {
    while (true) {
      Bytes out;
      conversation.fill(out, true, true, now);
      (void)testing::take_frames(out);
      HOLDS(out.empty());  // whole frames
      if (input.left() == 0) break;
      const Bytes bytes = input.bytes(piece);
      now += step;
      conversation.received(bytes.data(), bytes.size(), now);
      HOLDS(source.acked() <= source.last_seq());
    }
  } catch (const LinkEnded& end) {
    HOLDS(end.what()[0] != '\0' && end.kind[0] != '\0');
  } catch (const JournalProtocolError& end) {
    HOLDS(end.what()[0] != '\0');
  }
  HOLDS(conversation.take_refusals().size() <= LinkConversation::kRefusalsKept);
  pump.detached();
  serve_honestly(pump, source, nullptr);
  HOLDS(source.acked() == source.last_seq());
  return 0;
}

}  // namespace kvstore::fuzz
