#include "client/calls/page_call.hpp"

#include <algorithm>
#include <numeric>

namespace kvstore {

using wire::Status;

namespace {

// What a look at the directory may take away from a call that could do without: a master that needs longer is as good
// as none, and its breaker opens by then.
constexpr int64_t kCheckMs = 100;

}  // namespace

void PageCall::run(int handle) {
  if (entries_.empty()) return;
  handle_ = handle;
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

void PageCall::recall(const std::vector<uint32_t>& entries, std::vector<ObjectLocation>* where) {
  cluster_.locations().find(fingerprints_, entries, where);
}

void PageCall::remember(const std::vector<uint32_t>& entries, const std::vector<ObjectLocation>& where) {
  cluster_.locations().store(fingerprints_, entries, where);
}

void PageCall::forget(const std::vector<uint32_t>& entries) {
  if (entries.empty()) return;
  cluster_.locations().forget(fingerprints_, entries);
  cluster_.counters().add(Counter::kLocationsStale, entries.size());
}

Status PageCall::locate(const std::vector<uint32_t>& entries, const Deadline& deadline,
                        std::vector<ObjectLocation>* where) {
  const Status status = cluster_.locate(keys_.ns, fingerprints_, entries, deadline, where);
  if (status == Status::kOk) confirm_namespace();
  return status;
}

std::vector<uint32_t> PageCall::entries_to_ask(const std::vector<uint32_t>& unknown,
                                               const std::vector<uint32_t>& recalled) const {
  if (!unknown.empty() || recalled.empty() || cluster_.namespaces().is_confirmed(handle_, keys_.ns))
    return unknown;
  return {recalled.front()};
}

Deadline PageCall::directory_deadline(const std::vector<uint32_t>& unknown,
                                      const std::vector<uint32_t>& recalled) const {
  if (recalled.empty()) return deadline_;
  return deadline_.within_ms(unknown.empty() ? kCheckMs : std::max(deadline_.left_ms() / 2, kCheckMs));
}

TransportBatch PageCall::batch(BatchKind kind) const {
  TransportBatch batch;
  batch.kind = kind;
  batch.keys = &keys_;
  batch.statuses = statuses_;
  return batch;
}

std::vector<uint32_t> located(const std::vector<uint32_t>& entries, const std::vector<ObjectLocation>& where,
                              bool wanted) {
  std::vector<uint32_t> some;
  for (const uint32_t entry : entries)
    if (where[entry].known() == wanted) some.push_back(entry);
  return some;
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
