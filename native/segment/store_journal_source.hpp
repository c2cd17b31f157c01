// The journal and the content of a segment store, as the pump takes them. One thread at a time.
#pragma once

#include <memory>
#include <utility>

#include "segment/journal_pump.hpp"
#include "segment/segment_store.hpp"

namespace kvstore {

class StoreJournalSource final : public JournalSource {
 public:
  explicit StoreJournalSource(std::shared_ptr<SegmentStore> store) : store_(std::move(store)) {}

  uint64_t last_seq() override { return store_->journal().last_seq(); }
  std::optional<Journal::Batch> drain(size_t entries_max) override {
    return store_->journal().drain(entries_max);
  }
  void ack(uint64_t seq) override { store_->journal().ack(seq); }
  bool rewind(uint64_t seq) override { return store_->journal().rewind(seq); }
  uint64_t begin_inventory() override {
    inventory_ = store_->begin_inventory();
    return inventory_.last_seq;
  }
  bool next_inventory_slice(size_t entries_max, std::vector<uint8_t>& groups) override {
    return store_->inventory_slice(inventory_, entries_max, groups);
  }

 private:
  const std::shared_ptr<SegmentStore> store_;
  SegmentStore::Inventory inventory_{};
};

}  // namespace kvstore
