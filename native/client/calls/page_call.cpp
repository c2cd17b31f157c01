#include "client/calls/page_call.hpp"

#include <algorithm>
#include <numeric>

namespace kvstore {

using wire::Status;

void PageCall::run(int handle) {
  if (entries_.empty()) return;
  for (int attempts = 0; attempts < 2; ++attempts) {
    const Status opened =
        cluster_.namespaces().ensure_open(handle, cluster_.directory(), deadline_, &keys_.ns);
    if (opened != Status::kOk) {
      set(entries_, opened == Status::kTimeout ? opened : Status::kUnavailable);
      return;
    }
    fingerprints_ = keys_.fingerprints();
    set(entries_, Status::kUnavailable);
    if (attempt() == Attempt::kDone) return;
    cluster_.counters().add(Counter::kStaleNamespace);
    cluster_.namespaces().mark_stale(handle, keys_.ns);
  }
  // Cleared twice within this call: what it found or stored under the second name is out of reach as well.
  set(entries_, Status::kStaleNamespace);
}

bool PageCall::any_stale(const std::vector<uint32_t>& entries) const {
  return std::any_of(entries.begin(), entries.end(),
                     [&](uint32_t entry) { return status(entry) == Status::kStaleNamespace; });
}

TransportBatch PageCall::batch(BatchKind kind) const {
  TransportBatch batch;
  batch.kind = kind;
  batch.keys = &keys_;
  batch.statuses = statuses_;
  return batch;
}

std::vector<uint32_t> all_entries(const KeyBlock& keys) {
  std::vector<uint32_t> all(keys.entry_count());
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

std::vector<uint32_t> sound_entries(const Pieces& memory, uint8_t* statuses) {
  std::vector<uint32_t> sound;
  sound.reserve(memory.entry_count());
  for (uint32_t entry = 0; entry < memory.entry_count(); ++entry) {
    const Status fault = memory.fault(entry);
    if (fault == Status::kOk)
      sound.push_back(entry);
    else
      statuses[entry] = static_cast<uint8_t>(fault);
  }
  return sound;
}

}  // namespace kvstore
