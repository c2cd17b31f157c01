// Which puts belong together. A client cuts a batch into runs and asks for one commit at its end: until then nothing
// that the batch has brought, or was told to be there, may go for the sake of its own later runs. A batch is open from
// its first run until its commit is asked for, its connection ends, or nothing has come for a while. Not thread-safe: the
// owner locks.
//
// What open batches keep from eviction has a limit, for one and for all: of a batch that is larger the beginning is kept.
// Where all together are over theirs, the one that keeps most keeps nothing any more, so that who never commits can't
// have all of it for long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

namespace kvstore {

class PutBatches {
 public:
  // A batch that nothing was heard of for so long is none any more.
  static constexpr uint64_t kIdleMsMax = 10000;

  PutBatches() = default;
  PutBatches(uint64_t batch_bytes_max, uint64_t bytes_max)
      : batch_bytes_max_(batch_bytes_max), bytes_max_(bytes_max) {}

  // A new batch, open. 0 is never one.
  uint32_t open(uint64_t now_ms);
  bool is_open(uint32_t batch) const { return batch != 0 && open_.count(batch) != 0; }
  // An object of so many bytes is to be kept for the batch. False: it can't be, the batch keeps as much as it may.
  bool keep(uint32_t batch, uint64_t bytes) noexcept;
  // What it was to keep is kept.
  bool keeps(uint32_t batch) const noexcept {
    if (batch == 0) return false;
    const auto found = open_.find(batch);
    return found != open_.end() && !found->second.lost;
  }
  uint64_t kept_bytes() const { return kept_bytes_; }
  // A request of it begins or ends: while one runs its batch stays open. False: the batch is over.
  bool begin_request(uint32_t batch, uint64_t now_ms);
  // `seq` is the journal number after which what the request has brought is durable.
  void end_request(uint32_t batch, uint64_t seq, uint64_t now_ms) noexcept;
  void close(uint32_t batch) noexcept;
  // Somebody asked for everything up to `seq` to be durable: batches that reach no further and have no request running
  // are over, whichever connection they came by.
  void close_up_to(uint64_t seq) noexcept;
  void expire(uint64_t now_ms) noexcept;
  size_t size() const { return open_.size(); }

 private:
  // Those that no request of runs now, (last_seq, batch): a commit looks at what it ends and no others.
  using Idle = std::set<std::pair<uint64_t, uint32_t>>;
  struct Batch {
    uint64_t last_seq = 0;
    uint64_t heard_of_ms = 0;
    uint32_t requests = 0;    // that run now
    uint64_t kept_bytes = 0;  // from eviction
    bool lost = false;        // it keeps nothing any more
    Idle::node_type idle;     // while a request runs: its place, so that to end one takes no memory
  };
  using Open = std::unordered_map<uint32_t, Batch>;
  Open::iterator close(Open::iterator batch) noexcept;
  // Of the batch that keeps most.
  void lose_largest() noexcept;

  const uint64_t batch_bytes_max_ = UINT64_MAX, bytes_max_ = UINT64_MAX;
  uint64_t kept_bytes_ = 0;      // of all
  uint64_t next_expiry_ms_ = 0;  // none ends before: a put looks at no batch but its own
  Open open_;
  Idle idle_;
  uint32_t last_ = 0;
};

}  // namespace kvstore
