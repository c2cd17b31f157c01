// Which puts belong together. A client cuts a batch into runs and asks for one commit at its end: until then nothing
// that the batch has brought, or was told to be there, may go for the sake of its own later runs. A batch is open from
// its first run until its commit is asked for, its connection ends, or nothing has come for a while. Not thread-safe: the
// owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace kvstore {

class PutBatches {
 public:
  // A batch that nothing was heard of for so long is none any more.
  static constexpr uint64_t kIdleMsMax = 10000;

  // A new batch, open. 0 is never one.
  uint32_t open(uint64_t now_ms);
  bool is_open(uint32_t batch) const { return batch != 0 && open_.count(batch) != 0; }
  // A request of it begins or ends: while one runs its batch stays open. False: the batch is over.
  bool begin_request(uint32_t batch, uint64_t now_ms);
  // `seq` is the journal number after which what the request has brought is durable.
  void end_request(uint32_t batch, uint64_t seq, uint64_t now_ms) noexcept;
  void close(uint32_t batch) noexcept { open_.erase(batch); }
  // Somebody asked for everything up to `seq` to be durable: batches that reach no further and have no request running
  // are over, whichever connection they came by.
  void close_up_to(uint64_t seq) noexcept;
  void expire(uint64_t now_ms) noexcept;
  size_t size() const { return open_.size(); }

 private:
  struct Batch {
    uint64_t last_seq = 0;
    uint64_t heard_of_ms = 0;
    uint32_t requests = 0;  // that run now
  };
  std::unordered_map<uint32_t, Batch> open_;
  uint32_t last_ = 0;
};

}  // namespace kvstore
