// Which pages lie on disk and where, and which region goes next. No IO and no clock of its own; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/keys.hpp"
#include "segment/journal_entry.hpp"

namespace kvstore {

struct FingerprintHash {
  size_t operator()(const Fingerprint& fp) const { return fp.lo ^ mix64(fp.hi); }
};

struct DiskPlace {
  uint32_t region = 0;
  uint32_t block = 0;  // in the region
  uint32_t length = 0;
  uint32_t digest = 0;
  uint64_t seq = 0;  // of the region's round
  uint32_t blocks = 0;
};

class DiskIndex {
 public:
  explicit DiskIndex(uint32_t region_count);

  struct Entry {
    DiskPlace place;
    NamespaceId ns{};
    uint32_t hits = 0;
    uint64_t pinned_until_ms = 0;
  };
  Entry* find(const Fingerprint& fp);
  bool has(const Fingerprint& fp) const { return entries_.count(fp) != 0; }
  // A fingerprint that is there already lies in the new place from now on.
  void insert(const Fingerprint& fp, const NamespaceId& ns, const DiskPlace& place);
  bool erase(const Fingerprint& fp);
  // It was used now: its region goes later.
  void touch(uint32_t region) { regions_[region].used_at = ++uses_; }

  // ---- regions
  // One that holds nothing, or nothing: evict.
  std::optional<uint32_t> take_free();
  void give_free(uint32_t region) { free_.push_back(region); }
  size_t free_regions() const { return free_.size(); }
  // From now on it can be evicted.
  void close(uint32_t region);
  // Of the closed regions the one that was used longest ago is emptied and made free; of the older half one that no pin
  // keeps, if there is one. False: none is closed. What lay there is appended, as REMOVE.
  bool evict_region(uint64_t now_ms, std::vector<JournalEntry>& removed);
  // The pages of one region, as ADD.
  void list(uint32_t region, std::vector<JournalEntry>& entries) const;
  uint32_t region_count() const { return static_cast<uint32_t>(regions_.size()); }

  std::vector<NamespaceId> namespaces() const;
  size_t size() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }  // of the pages, as stored

 private:
  struct Region {
    std::vector<Fingerprint> pages;  // some of them may have gone, or lie elsewhere meanwhile
    uint64_t used_at = 0;
    bool closed = false;
  };
  bool is_pinned(uint32_t region, uint64_t now_ms) const;
  void drop(std::unordered_map<Fingerprint, Entry, FingerprintHash>::iterator it);

  std::unordered_map<Fingerprint, Entry, FingerprintHash> entries_;
  std::unordered_map<uint64_t, uint64_t> by_namespace_;  // pages of each
  std::vector<Region> regions_;
  std::vector<uint32_t> free_;
  uint64_t uses_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace kvstore
