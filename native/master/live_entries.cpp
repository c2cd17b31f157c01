#include "master/live_entries.hpp"

#include <algorithm>

namespace kvstore {
namespace {

constexpr uint8_t kOpAdd = 1;

}  // namespace

uint64_t LiveEntries::keep(const void* groups, size_t bytes) {
  const std::vector<DirectoryIndex::Held> held = index_.take_held(segment_, groups, bytes, taken_);
  for (const DirectoryIndex::Held& entry : held) {
    if (kept_.empty() || kept_.back().ns != entry.ns) {
      const auto same = [&](const Kept& kept) { return kept.ns == entry.ns; };
      const auto found = std::find_if(kept_.begin(), kept_.end(), same);
      if (found == kept_.end())
        kept_.push_back(Kept{entry.ns, {}});
      else
        std::rotate(found, found + 1, kept_.end());  // neighbours mostly share a namespace
    }
    kept_.back().entries.push_back(entry);
  }
  return held.size();
}

wire::Writer LiveEntries::take() {
  size_t entries = 0;
  for (const Kept& kept : kept_) entries += kept.entries.size();
  wire::Writer groups(entries * (kFingerprintBytes + 4) + kept_.size() * 16);
  for (const Kept& kept : kept_) {
    groups.u8(kOpAdd).zeros(3).u32(static_cast<uint32_t>(kept.entries.size()));
    groups.raw(kept.ns.data(), kNamespaceBytes);
    for (const DirectoryIndex::Held& entry : kept.entries)
      groups.u64(entry.fingerprint.lo).u64(entry.fingerprint.hi);
    for (const DirectoryIndex::Held& entry : kept.entries) groups.u32(entry.length);
  }
  kept_.clear();
  return groups;
}

}  // namespace kvstore
