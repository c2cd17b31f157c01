// The newest entries of a journal, in the memory of the pool itself: they outlive the process, so that the next one streams on
// from where this one was. A ring: entry number n lies in place n mod entry_count, and its check is made over n too, so that one
// of an earlier lap is not taken for it.
//
// A process may be killed between any two instructions. Entries are written first, their check word last; the state that
// names them lies there twice and the older copy is overwritten. recover() finds every entry that was whole.
//
// Not thread-safe: the journal's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "segment/journal_entry.hpp"

namespace kvstore {

class JournalRing {
 public:
  static constexpr uint64_t kStateBytes = 128;
  static constexpr uint64_t kEntryBytes = 32;
  static uint64_t bytes_of(uint64_t entry_count) { return kStateBytes + entry_count * kEntryBytes; }

  // `at`: bytes_of(entry_count) of memory, aligned to 64 bytes, that outlives the ring. Touches nothing.
  JournalRing(uint8_t* at, uint64_t entry_count);

  // Makes it one without entries, whatever lies there.
  void format() noexcept;
  // Numbers (first_seq, first_seq + 1, ...) continue those of before.
  void append(uint64_t first_seq, const JournalEntry* entries, size_t count) noexcept;
  // What append() is about to write under this number: found also when this process is killed before it does.
  void foretell(uint64_t seq, const JournalEntry& entry) noexcept;
  // It is not to come after all.
  void take_back(uint64_t seq) noexcept;
  // Nothing up to `seq` is needed any more.
  void ack(uint64_t seq) noexcept;
  // The numbers up to `seq` were given, and none of their entries is to be had.
  void lose(uint64_t seq) noexcept;

  struct Recovered {
    bool intact = false;  // false: nothing below counts, and nobody knows what the directory was told
    // Entries may have been given numbers above last_seq() that can't be seen any more: whoever goes on from here announces all anew.
    bool numbers_lost = false;
    uint64_t acked_seq = 0;
    uint64_t first_seq = 1;  // of `entries`, or of the next one where there are none
    std::vector<JournalEntry> entries;
    uint64_t last_seq() const { return first_seq + entries.size() - 1; }
  };
  // What is there that was not acknowledged. Writes nothing; append() goes on after it.
  Recovered recover();
  // The newest entries, acknowledged or not, as far as they are to be had: `count` at the most, up to the last one, in order.
  std::vector<JournalEntry> newest(size_t count) const;

 private:
  struct State {
    uint64_t last_seq;
    uint64_t acked_seq;
    uint64_t lost_seq;  // entries up to here are not to be had
    uint32_t serial;    // the higher one is the newer, but for the wrap
    uint32_t check;
  };
  static_assert(2 * 64 == kStateBytes && sizeof(State) <= 64);
  State* copy(uint32_t which) const;
  static uint32_t check_of(const State& state);
  void store(const State& state) noexcept;
  uint8_t* place(uint64_t seq) const { return at_ + kStateBytes + seq % entry_count_ * kEntryBytes; }
  bool read(uint64_t seq, JournalEntry& entry) const;
  void write(uint64_t seq, const JournalEntry& entry) noexcept;

  uint8_t* const at_;
  const uint64_t entry_count_;
  State state_{};
};

}  // namespace kvstore
