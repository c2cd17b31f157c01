#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"
#include "segment/journal.hpp"
#include "segment/journal_ring.hpp"

using namespace kvstore;

namespace {

constexpr uint64_t kEntries = 64;

// Memory as a new pool file has it, that a forked child shares.
struct Memory {
  uint8_t* const at = static_cast<uint8_t*>(::mmap(
      nullptr, JournalRing::bytes_of(kEntries), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ~Memory() { ::munmap(at, JournalRing::bytes_of(kEntries)); }
};

// What entry `seq` says in these tests.
JournalEntry entry_of(uint64_t seq) {
  return {{seq * 3 + 1, ~seq},
          {static_cast<uint8_t>(seq % 5)},
          static_cast<uint32_t>(seq % 7 == 0 ? 1u << 30 : seq),
          seq % 3 == 0 ? JournalOp::kRemove : JournalOp::kAdd};
}

std::vector<JournalEntry> entries(uint64_t first_seq, size_t count) {
  std::vector<JournalEntry> out;
  for (size_t i = 0; i < count; ++i) out.push_back(entry_of(first_seq + i));
  return out;
}

bool is_entry(const JournalEntry& entry, uint64_t seq) {
  const JournalEntry wanted = entry_of(seq);
  return entry.fp == wanted.fp && entry.ns == wanted.ns && entry.length == wanted.length &&
         entry.op == wanted.op;
}

JournalRing::Recovered recovered(const Memory& memory) {
  auto found = JournalRing(memory.at, kEntries).recover();
  for (size_t i = 0; i < found.entries.size(); ++i) CHECK(is_entry(found.entries[i], found.first_seq + i));
  return found;
}

}  // namespace

TEST(a_formatted_ring_begins_at_one_and_memory_that_was_never_formatted_is_none) {
  Memory memory;
  CHECK(!recovered(memory).intact);
  JournalRing(memory.at, kEntries).format();
  const auto found = recovered(memory);
  CHECK(found.intact);
  CHECK_EQ(found.first_seq, uint64_t{1});
  CHECK_EQ(found.last_seq(), uint64_t{0});
}

TEST(what_was_not_acknowledged_is_there_again_over_many_laps) {
  Memory memory;
  JournalRing ring(memory.at, kEntries);
  ring.format();
  uint64_t last = 0;
  for (size_t count = 1; count < 40; ++count) {
    const auto batch = entries(last + 1, count);
    ring.append(last + 1, batch.data(), count);
    last += count;
    ring.ack(last - count / 2);
    const auto found = recovered(memory);
    CHECK(found.intact);
    CHECK_EQ(found.last_seq(), last);
    CHECK_EQ(found.acked_seq, last - count / 2);
    CHECK_EQ(found.first_seq, last - count / 2 + 1);
  }
}

TEST(what_the_ring_has_no_room_for_is_a_gap_and_what_is_kept_has_no_hole) {
  Memory memory;
  JournalRing ring(memory.at, kEntries);
  ring.format();
  for (const size_t count : {size_t{kEntries}, size_t{1}, size_t{kEntries * 3 + 5}}) {
    const uint64_t first = recovered(memory).last_seq() + 1;
    const auto batch = entries(first, count);
    ring.append(first, batch.data(), count);
    const auto found = recovered(memory);
    CHECK_EQ(found.last_seq(), first + count - 1);
    CHECK_EQ(found.entries.size(), size_t{kEntries});
  }
}

TEST(one_flipped_bit_loses_what_came_before_it_and_never_tells_a_lie) {
  for (uint64_t bit = 0; bit < JournalRing::bytes_of(kEntries) * 8; bit += 3) {
    Memory memory;
    JournalRing ring(memory.at, kEntries);
    ring.format();
    const auto batch = entries(1, 100);
    ring.append(1, batch.data(), 90);
    ring.ack(50);
    ring.append(91, batch.data() + 90, 10);
    memory.at[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    const auto found = recovered(memory);  // compares each entry
    CHECK(found.intact);
    CHECK_EQ(found.last_seq(), uint64_t{100});
    CHECK(found.acked_seq <= 50 && found.first_seq > found.acked_seq);
  }
}

TEST(a_ring_whose_state_is_damaged_twice_is_not_intact) {
  Memory memory;
  JournalRing ring(memory.at, kEntries);
  ring.format();
  const auto batch = entries(1, 3);
  ring.append(1, batch.data(), 3);
  memory.at[0] ^= 1;
  memory.at[64] ^= 1;
  CHECK(!recovered(memory).intact);
}

TEST(numbers_that_only_a_damaged_state_may_have_named_count_as_lost) {
  Memory memory;
  JournalRing ring(memory.at, kEntries);
  ring.format();
  const auto batch = entries(1, 8);
  ring.append(1, batch.data(), 4);
  ring.append(5, batch.data() + 4, 4);
  CHECK(!recovered(memory).numbers_lost);
  for (const size_t copy : {0u, 64u}) {
    Memory damaged;
    std::memcpy(damaged.at, memory.at, JournalRing::bytes_of(kEntries));
    damaged.at[copy + 3] ^= 1;
    CHECK(recovered(damaged).intact && recovered(damaged).numbers_lost);
    // Killed while it was written, which is no damage: the other one is the newest.
    std::memset(damaged.at + copy + 28, 0, 4);
    CHECK(recovered(damaged).intact && !recovered(damaged).numbers_lost);
  }
}

TEST(lost_numbers_stay_lost) {
  Memory memory;
  JournalRing ring(memory.at, kEntries);
  ring.format();
  const auto batch = entries(1, 12);
  ring.append(1, batch.data(), 10);
  ring.lose(11);
  CHECK_EQ(recovered(memory).first_seq, uint64_t{12});
  CHECK_EQ(recovered(memory).last_seq(), uint64_t{11});
  ring.append(12, batch.data() + 11, 1);
  const auto found = recovered(memory);
  CHECK_EQ(found.first_seq, uint64_t{12});
  CHECK_EQ(found.last_seq(), uint64_t{12});
}

TEST(a_journal_streams_on_from_where_the_one_before_it_was) {
  Memory memory;
  JournalRing ring(memory.at, kEntries);
  ring.format();
  {
    Journal journal(1000, &ring);
    journal.append(entries(1, 20));
    CHECK(journal.drain(15).has_value());
    journal.ack(10);
  }
  JournalRing again(memory.at, kEntries);
  const auto found = again.recover();
  Journal journal(1000, &again, found);
  CHECK_EQ(journal.last_seq(), uint64_t{20});
  CHECK_EQ(journal.acked_seq(), uint64_t{10});
  CHECK_EQ(journal.oldest_kept_seq(), uint64_t{11});
  CHECK_EQ(journal.append(entries(21, 2)), uint64_t{21});
  CHECK(journal.rewind(12));  // the master had more than we were told
  const auto batch = journal.drain(100);
  CHECK(batch && batch->first_seq == 13 && batch->last_seq == 22);
  journal.lose();
  CHECK_EQ(journal.last_seq(), uint64_t{23});
  CHECK_EQ(journal.oldest_kept_seq(), uint64_t{24});
  CHECK(!journal.rewind(22));
  CHECK_EQ(recovered(memory).first_seq, uint64_t{24});
}

TEST(what_was_foretold_is_there_though_it_was_never_appended_and_what_did_not_come_is_not) {
  Memory memory;
  JournalRing ring(memory.at, kEntries);
  ring.format();
  Journal journal(1000, &ring);
  journal.append(entries(1, 3));
  journal.foretell(entry_of(4));
  journal.foretell(entry_of(5));
  CHECK_EQ(journal.last_seq(), uint64_t{3});
  CHECK_EQ(recovered(memory).last_seq(), uint64_t{5});  // as if killed now
  journal.append(entries(4, 1));
  CHECK_EQ(recovered(memory).last_seq(), uint64_t{4});
  journal.append(entries(5, 1));
  CHECK_EQ(recovered(memory).last_seq(), uint64_t{5});
}

TEST(the_newest_entries_are_those_before_the_last_whether_acknowledged_or_not) {
  Memory memory;
  JournalRing ring(memory.at, kEntries);
  ring.format();
  CHECK(ring.newest(10).empty());
  const auto batch = entries(1, 200);
  for (uint64_t seq = 1; seq <= 200; ++seq) ring.append(seq, &batch[seq - 1], 1);
  ring.ack(200);
  for (const size_t count : {size_t{1}, size_t{10}, size_t{kEntries}, size_t{1000}}) {
    const auto newest = ring.newest(count);
    CHECK_EQ(newest.size(), std::min<size_t>(count, kEntries));
    for (size_t i = 0; i < newest.size(); ++i) CHECK(is_entry(newest[i], 201 - newest.size() + i));
  }
}

// Killed at any moment: all that append() had returned for is there, and what is there is what was appended.
TEST(a_writer_that_is_killed_leaves_every_finished_append_and_no_half_of_one) {
  const auto seed = std::random_device{}();
  std::fprintf(stderr, "seed %u\n", seed);
  std::mt19937 rng(seed);
  Memory memory;
  auto* const told = static_cast<volatile uint64_t*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  JournalRing(memory.at, kEntries).format();
  for (int round = 0; round < 150; ++round) {
    const uint32_t child_seed = rng();
    const pid_t child = ::fork();
    if (child == 0) {
      std::mt19937 draw(child_seed);
      JournalRing ring(memory.at, kEntries);
      uint64_t last = ring.recover().last_seq(), acked = told[1];
      for (;;) {
        const size_t count = 1 + draw() % 20;
        const auto batch = entries(last + 1, count);
        ring.append(last + 1, batch.data(), count);
        last += count;
        told[0] = last;
        if (draw() % 2 == 0) {
          const uint64_t to = std::max(acked, last - std::min<uint64_t>(last, draw() % 30));
          ring.ack(to);
          told[1] = acked = to;
        }
      }
    }
    const uint64_t had = told[0];
    while (told[0] == had) ::usleep(50);
    ::usleep(rng() % 300);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto found = recovered(memory);
    CHECK(found.intact);
    CHECK(found.last_seq() >= told[0] && found.last_seq() < told[0] + 21);
    CHECK(found.acked_seq >= told[1]);
    // Of the newest only as many are missing as an append that was under way has begun to overwrite.
    CHECK(found.first_seq <= std::max(found.acked_seq + 1, told[0] + 21 - kEntries));
    told[0] = found.last_seq();
    told[1] = found.acked_seq;
  }
  ::munmap(const_cast<uint64_t*>(told), 4096);
}

TEST_MAIN()
