#include "client/calls/fetch_call.hpp"

#include <algorithm>

namespace kvstore {

using wire::Status;

FetchLengthsCall::Attempt FetchLengthsCall::attempt() {
  std::fill(lengths_.begin(), lengths_.end(), 0);
  // Lengths are the directory's to tell, since an object may have been replaced; without it, those of the last time.
  std::vector<ObjectLocation> where(entries().size()), answer(entries().size());
  recall(entries(), &where);
  const Status looked_up =
      locate(entries(), directory_deadline(entries(), located(entries(), where)), &answer);
  if (looked_up == Status::kStaleNamespace) return Attempt::kStaleNamespace;
  if (looked_up == Status::kOk) where = std::move(answer);
  uint64_t total_bytes = 0;
  for (const uint32_t entry : entries()) {
    set(entry, looked_up == Status::kOk ? Status::kMiss : looked_up);
    const uint32_t length = where[entry].length;
    if (!where[entry].known() || length == 0) continue;
    const bool fits = length <= wire::kObjectBytesMax && total_bytes + length <= bytes_max_;
    set(entry, fits ? Status::kUnavailable : Status::kTooLarge);
    if (!fits) continue;
    lengths_[entry] = length;
    total_bytes += length;
  }
  return Attempt::kDone;
}

std::vector<uint32_t> fetched_entries(const std::vector<uint32_t>& lengths) {
  std::vector<uint32_t> entries;
  for (uint32_t entry = 0; entry < lengths.size(); ++entry)
    if (lengths[entry] > 0) entries.push_back(entry);
  return entries;
}

}  // namespace kvstore
