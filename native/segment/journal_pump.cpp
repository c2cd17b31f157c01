#include "segment/journal_pump.hpp"

#include <string>
#include <utility>

namespace kvstore {

JournalPump::JournalPump(JournalSource& source, size_t batch_entries_max, size_t batches_in_flight_max)
    : source_(source), batch_entries_max_(batch_entries_max), batches_in_flight_max_(batches_in_flight_max) {
  if (batch_entries_max == 0 || batches_in_flight_max == 0)
    throw std::invalid_argument("batch_entries_max and batches_in_flight_max are at least 1");
}

void JournalPump::attached(uint64_t durable_seq, bool need_inventory) {
  detached();
  // A master ahead of us knows another life of this pool: only the whole content can put that right.
  const bool ahead = durable_seq > source_.last_seq();
  durable_seq_ = sent_seq_ = ahead ? 0 : durable_seq;
  if (need_inventory || ahead || !source_.rewind(durable_seq)) return begin_inventory();
  state_ = State::kStreaming;
  source_.ack(durable_seq);
}

void JournalPump::detached() {
  state_ = State::kDetached;
  unacked_.clear();
}

void JournalPump::inventory_requested() {
  if (state() != State::kDetached) begin_inventory();
}

std::optional<JournalPump::Message> JournalPump::next_message() {
  if (state() == State::kDetached || window_full()) return std::nullopt;
  if (state() == State::kInventory) return next_chunk();
  std::optional<Journal::Batch> batch = source_.drain(batch_entries_max_);
  if (!batch) return std::nullopt;
  if (batch->first_seq != sent_seq() + 1) {
    gaps_.fetch_add(1, std::memory_order_relaxed);
    begin_inventory();
    return next_chunk();
  }
  if (batch->last_seq < batch->first_seq)
    throw JournalProtocolError("the journal handed out entries " + std::to_string(batch->first_seq) + " to " +
                               std::to_string(batch->last_seq));
  sent_seq_ = batch->last_seq;
  unacked_.push_back(batch->last_seq);
  return Message{Kind::kBatch, batch->first_seq, batch->last_seq, std::move(batch->groups), false, false};
}

void JournalPump::acked(uint64_t durable_seq) {
  if (state() == State::kDetached) return;
  if (durable_seq > sent_seq())
    throw JournalProtocolError("the master acknowledged entry " + std::to_string(durable_seq) +
                               ", but only " + std::to_string(sent_seq()) + " was sent");
  while (!unacked_.empty() && unacked_.front() <= durable_seq) unacked_.pop_front();
  if (durable_seq <= this->durable_seq()) return;
  durable_seq_ = durable_seq;
  source_.ack(durable_seq);
}

void JournalPump::begin_inventory() {
  inventory_seq_ = source_.begin_inventory();
  inventory_begun_ = false;
  state_ = State::kInventory;
  unacked_.clear();
}

JournalPump::Message JournalPump::next_chunk() {
  Message chunk;
  chunk.kind = Kind::kChunk;
  chunk.last_seq = inventory_seq_;
  // An empty segment says so too, in one empty chunk: the master forgets what it had of us.
  do chunk.last = source_.next_inventory_slice(batch_entries_max_, chunk.groups);
  while (chunk.groups.empty() && !chunk.last);
  chunk.first = !std::exchange(inventory_begun_, true);
  if (chunk.last) {
    state_ = State::kStreaming;
    sent_seq_ = inventory_seq_;
    unacked_.push_back(inventory_seq_);
    inventories_sent_.fetch_add(1, std::memory_order_relaxed);
  }
  return chunk;
}

}  // namespace kvstore
