// What a segment sends to its master, and when: the attach/journal protocol without its IO.
//
//     detached --attached(durable_seq)--> streaming --detached()--> detached
//                   |                        ^   |
//                   | the master is behind   |   | a gap: the journal lost entries
//                   v                        |   v
//               inventory ------------------- inventory
//
// The journal is the segment's only way to write into the directory, so the pump keeps two promises: entries
// go out in order without a hole (a hole is mended by an inventory), and at most `batches_in_flight_max`
// batches wait for an ack, so that a slow master costs bounded memory here and there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <stdexcept>
#include <vector>

#include "segment/journal.hpp"

namespace kvstore {

// What the pump takes from. Its implementation may throw: the pump then stays as it was, or is to be detached.
class JournalSource {
 public:
  virtual ~JournalSource() = default;
  virtual uint64_t last_seq() = 0;
  virtual std::optional<Journal::Batch> drain(size_t entries_max) = 0;
  virtual void ack(uint64_t seq) = 0;
  // False when what follows `seq` is not kept any more.
  virtual bool rewind(uint64_t seq) = 0;
  // Begins an inventory, in place of one that was not finished. Returns the number that it stands for; entries
  // up to it count as handed out.
  virtual uint64_t begin_inventory() = 0;
  // Appends the next of it to `groups`, at most `entries_max` entries; true when nothing is left.
  virtual bool next_inventory_slice(size_t entries_max, std::vector<uint8_t>& groups) = 0;
};

// The master, or the journal, said something that can't be: the stream must be torn down and begun again.
class JournalProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Decides the next message of one attached stream. One thread at a time drives it; the numbers (state() to
// entries_refused()) may be read by any.
class JournalPump {
 public:
  enum class State : uint8_t { kDetached, kInventory, kStreaming };
  enum class Kind : uint8_t { kBatch, kChunk };

  struct Message {
    Kind kind = Kind::kBatch;
    uint64_t first_seq = 0;  // of a batch
    uint64_t last_seq = 0;   // of a batch; what a chunk's inventory stands for
    std::vector<uint8_t> groups;
    bool first = false, last = false;  // of an inventory
  };

  static constexpr size_t kBatchEntriesMax =
      16384;  // 20 bytes each, and 16 for each change of op or namespace
  static constexpr size_t kBatchesInFlightMax = 4;

  // Throws std::invalid_argument when one of the two is 0. `source` outlives the pump.
  explicit JournalPump(JournalSource& source, size_t batch_entries_max = kBatchEntriesMax,
                       size_t batches_in_flight_max = kBatchesInFlightMax);
  JournalPump(const JournalPump&) = delete;
  JournalPump& operator=(const JournalPump&) = delete;

  // A master has taken us in and holds our entries up to `durable_seq`.
  void attached(uint64_t durable_seq, bool need_inventory);
  // The stream is gone; what was on its way on it is sent again after the next attach.
  void detached();
  // The master wants the whole content, in the middle of the stream.
  void inventory_requested();
  // The next thing to send; nothing when there is nothing to say, or the window is full. Throws
  // JournalProtocolError.
  std::optional<Message> next_message();
  // The master has made everything up to `durable_seq` durable. Throws JournalProtocolError, and takes
  // nothing, when this stream has not carried that.
  void acked(uint64_t durable_seq);
  // The master has left so many entries out, because they say what can't be.
  void count_refused(uint64_t entries) { entries_refused_.fetch_add(entries, std::memory_order_relaxed); }

  // True while next_message must wait for an ack, however much there is to send. For the driving thread.
  bool window_full() const { return unacked_.size() >= batches_in_flight_max_; }

  State state() const { return state_.load(std::memory_order_relaxed); }
  // The last entry handed out on this stream.
  uint64_t sent_seq() const { return sent_seq_.load(std::memory_order_relaxed); }
  // The last entry that a master has confirmed on this stream.
  uint64_t durable_seq() const { return durable_seq_.load(std::memory_order_relaxed); }
  uint64_t inventories_sent() const { return inventories_sent_.load(std::memory_order_relaxed); }
  uint64_t gaps() const { return gaps_.load(std::memory_order_relaxed); }
  uint64_t entries_refused() const { return entries_refused_.load(std::memory_order_relaxed); }

 private:
  void begin_inventory();
  Message next_chunk();

  JournalSource& source_;
  const size_t batch_entries_max_;
  const size_t batches_in_flight_max_;
  std::deque<uint64_t> unacked_;  // last_seq of each batch, and of an inventory, on its way
  uint64_t inventory_seq_ = 0;    // what the inventory stands for that is being sent
  bool inventory_begun_ = false;  // its first chunk is out
  std::atomic<State> state_{State::kDetached};
  std::atomic<uint64_t> sent_seq_{0}, durable_seq_{0};
  std::atomic<uint64_t> inventories_sent_{0}, gaps_{0}, entries_refused_{0};
};

}  // namespace kvstore
