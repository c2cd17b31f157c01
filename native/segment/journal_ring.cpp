#include "segment/journal_ring.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

#include "base/digest.hpp"

namespace kvstore {
namespace {

constexpr uint32_t kRemoveBit = 1u << 31;  // of the length: objects have at most 1 GiB

// As it lies in the ring. `check` is over the number and what stands before it.
struct Packed {
  Fingerprint fp;
  NamespaceId ns;
  uint32_t length_and_op;
  uint32_t check;
};
static_assert(sizeof(Packed) == JournalRing::kEntryBytes);

uint32_t check_of(uint64_t seq, const Packed& packed) {
  // Never 0, which is what memory holds that nobody has written to.
  return crc32c(crc32c(0x4C524A52, &seq, sizeof(seq)), &packed, offsetof(Packed, check)) | 1u;
}

// What comes before in the program is in memory before what comes after, for whoever finds the memory when this
// process has been killed.
void order_writes() { std::atomic_thread_fence(std::memory_order_release); }

void store_check(void* at, uint32_t check) {
  __atomic_store_n(static_cast<uint32_t*>(at), check, __ATOMIC_RELEASE);
}

}  // namespace

JournalRing::JournalRing(uint8_t* at, uint64_t entry_count) : at_(at), entry_count_(entry_count) {
  if (entry_count == 0) throw std::invalid_argument("a journal ring has at least one entry");
}

JournalRing::State* JournalRing::copy(uint32_t which) const {
  return reinterpret_cast<State*>(at_ + size_t{which % 2} * 64);
}

uint32_t JournalRing::check_of(const State& state) {
  return crc32c(0x4C524A53, &state, offsetof(State, check)) | 1u;
}

void JournalRing::store(const State& state) noexcept {
  state_ = state;
  state_.serial = state.serial + 1;
  State* const to = copy(state_.serial);
  store_check(&to->check, 0);  // nobody takes half of the new one for the old one
  order_writes();
  std::memcpy(static_cast<void*>(to), &state_, offsetof(State, check));
  store_check(&to->check, check_of(state_));
}

void JournalRing::format() noexcept {
  std::memset(at_, 0, bytes_of(entry_count_));
  order_writes();
  store(State{});
}

void JournalRing::write(uint64_t seq, const JournalEntry& entry) noexcept {
  Packed packed{entry.fp, entry.ns, entry.length & ~kRemoveBit, 0};
  if (entry.op == JournalOp::kRemove) packed.length_and_op |= kRemoveBit;
  uint8_t* const to = place(seq);
  store_check(to + offsetof(Packed, check), 0);
  order_writes();
  std::memcpy(to, &packed, offsetof(Packed, check));
  store_check(to + offsetof(Packed, check), kvstore::check_of(seq, packed));
}

void JournalRing::append(uint64_t first_seq, const JournalEntry* entries, size_t count) noexcept {
  if (count == 0) return;
  // Of more than fit only the last ones stay: the others would be overwritten at once.
  for (size_t i = count > entry_count_ ? count - entry_count_ : 0; i < count; ++i)
    write(first_seq + i, entries[i]);
  State state = state_;
  state.last_seq = first_seq + count - 1;
  store(state);
}

void JournalRing::foretell(uint64_t seq, const JournalEntry& entry) noexcept {
  write(seq, entry);
  order_writes();
}

void JournalRing::take_back(uint64_t seq) noexcept { store_check(place(seq) + offsetof(Packed, check), 0); }

void JournalRing::ack(uint64_t seq) noexcept {
  State state = state_;
  state.acked_seq = std::max(state.acked_seq, seq);
  store(state);
}

void JournalRing::lose(uint64_t seq) noexcept {
  State state = state_;
  state.last_seq = state.lost_seq = std::max(state.last_seq, seq);
  store(state);
}

bool JournalRing::read(uint64_t seq, JournalEntry& entry) const {
  Packed packed;
  std::memcpy(&packed, place(seq), sizeof(packed));
  if (packed.check != kvstore::check_of(seq, packed)) return false;
  entry = {packed.fp, packed.ns, packed.length_and_op & ~kRemoveBit,
           (packed.length_and_op & kRemoveBit) != 0 ? JournalOp::kRemove : JournalOp::kAdd};
  return true;
}

JournalRing::Recovered JournalRing::recover() {
  Recovered found;
  bool damaged = false;
  for (uint32_t which = 0; which < 2; ++which) {
    State state;
    std::memcpy(&state, copy(which), sizeof(state));
    if (state.check != check_of(state)) {
      // Zero: its writer was killed, and the other copy is the newest. Anything else went bad, and may have been that one.
      damaged |= state.check != 0;
      continue;
    }
    if (!found.intact || static_cast<int32_t>(state.serial - state_.serial) > 0) state_ = state;
    found.intact = true;
  }
  if (!found.intact || state_.acked_seq > state_.last_seq || state_.lost_seq > state_.last_seq) {
    found.intact = false;
    return found;
  }
  // Killed between the last entry and the state that names it.
  JournalEntry entry{};
  while (read(state_.last_seq + 1, entry)) ++state_.last_seq;
  found.numbers_lost = damaged;
  found.acked_seq = state_.acked_seq;
  uint64_t first = std::max(state_.acked_seq, state_.lost_seq) + 1;
  if (state_.last_seq >= entry_count_) first = std::max(first, state_.last_seq - entry_count_ + 1);
  // What is kept has no hole: it begins after the last one that can't be read.
  for (uint64_t seq = first; seq <= state_.last_seq; ++seq)
    if (!read(seq, entry)) first = seq + 1;
  found.first_seq = first;
  found.entries.reserve(state_.last_seq + 1 - first);
  for (uint64_t seq = first; seq <= state_.last_seq && read(seq, entry); ++seq)
    found.entries.push_back(entry);
  return found;
}

std::vector<JournalEntry> JournalRing::newest(size_t count) const {
  const uint64_t wanted = std::min({uint64_t{count}, entry_count_, state_.last_seq});
  std::vector<JournalEntry> entries;
  entries.reserve(wanted);
  JournalEntry entry{};
  for (uint64_t seq = state_.last_seq + 1 - wanted; seq <= state_.last_seq; ++seq) {
    if (read(seq, entry))
      entries.push_back(entry);
    else
      entries.clear();
  }
  return entries;
}

}  // namespace kvstore
