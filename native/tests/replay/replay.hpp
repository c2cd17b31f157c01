// Plays recorded requests on a segment's real store: its slots, its memory, its evictor. A request is the chain of
// pages of one prompt: one look-up of the whole chain, then a put of what was missing, in batches of 128 pages with
// the head first, as an engine writes them. A put says what is wanted of its pages, and behind all puts of a request it
// is said of the whole chain. Space is made when it is needed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "segment/eviction/eviction_policy.hpp"
#include "segment/segment_store.hpp"

namespace kvstore::replay {

struct Request {
  std::vector<uint32_t> pages;  // head first
  std::vector<uint8_t> keep;    // Keep, one a page
};

struct Hits {
  uint64_t pages = 0, blocks = 0, prefix = 0;

  // prefix: only what has all of its pages before it there, too.
  void count(const std::vector<bool>& there) {
    bool leading = true;
    for (const bool one : there) {
      leading = leading && one;
      ++pages;
      blocks += one;
      prefix += leading;
    }
  }
};

constexpr uint32_t kBatch = 128;

class Store {
 public:
  static constexpr uint32_t kPageBytes = 4096;

  // `disk_path`: a file for a disk tier of `disk_pages` pages; empty: none.
  Store(const std::string& policy, uint32_t pages_max, const std::string& disk_path = {},
        uint64_t disk_pages = 0, uint32_t admit_uses = 2)
      : store_(options(policy, pages_max, disk_path, disk_pages, admit_uses)) {}

  Hits play(const std::vector<Request>& requests) {
    Hits hits;
    for (const Request& request : requests) {
      const std::vector<bool> there = look_up(request.pages);
      hits.count(there);
      std::vector<uint32_t> pages, depths;
      for (uint32_t i = 0; i < there.size(); ++i) {
        if (there[i]) continue;
        if (!depths.empty() && (pages.size() == kBatch || request.keep[depths.back()] != request.keep[i]))
          put(pages, depths, wish_of(request.keep[depths.back()]));
        pages.push_back(request.pages[i]);
        depths.push_back(i);
      }
      if (!pages.empty()) put(pages, depths, wish_of(request.keep[depths.back()]));
      hint(request);
      wait_for_disk();
    }
    return hits;
  }

 private:
  static SegmentStoreOptions options(const std::string& policy, uint32_t pages_max,
                                     const std::string& disk_path, uint64_t disk_pages, uint32_t admit_uses) {
    SegmentStoreOptions o;
    // Slot headers beyond the first chunk lie in the capacity too.
    const uint64_t headers = pages_max > kChunkSlots ? pages_max - kChunkSlots : 0;
    o.capacity_bytes = uint64_t{pages_max} * kPageBytes + headers * sizeof(SlotHeader);
    o.eviction_policy = policy;
    o.free_ahead_bytes = 0;
    o.disk.path = disk_path;
    // What a page takes there, and its line in a table of contents.
    o.disk.capacity_bytes = (2 * DiskIo::kBlockBytes + sizeof(DiskRecordHeader)) * (disk_pages + 64);
    o.disk.admit_uses = admit_uses;
    o.disk.wait_ms = 60'000;
    o.disk.slow_ms = 60'000;
    return o;
  }

  // In the time of a trace the writer is never behind.
  void wait_for_disk() {
    if (store_.options().disk.path.empty()) return;
    while (store_.stats().at("disk_queued_pages") > 0) std::this_thread::yield();
  }

  KeyBlock block(const std::vector<uint32_t>& pages) {
    hashes_.resize(pages.size());
    for (size_t i = 0; i < pages.size(); ++i)
      for (uint64_t word = 0; word < 4; ++word) {
        const uint64_t bits = mix64((uint64_t{pages[i]} + 1) * 4 + word);
        std::memcpy(hashes_[i].data() + 8 * word, &bits, 8);
      }
    KeyBlock block;
    block.ns = {'r', 'e', 'p', 'l', 'a', 'y'};
    block.shard_count = 1;
    block.key_count = static_cast<uint32_t>(pages.size());
    block.shards = kWholeShard.data();
    block.hashes = hashes_.empty() ? nullptr : hashes_[0].data();
    return block;
  }

  std::vector<bool> look_up(const std::vector<uint32_t>& pages) {
    static const std::atomic<bool> never{false};
    const KeyBlock wanted = block(pages);
    std::vector<ReadEntry> reads = store_.acquire_reads(wanted, nullptr);
    store_.read_from_disk(wanted, nullptr, 0, never, reads);
    std::vector<bool> there;
    for (const ReadEntry& read : reads) there.push_back(read.status == wire::Status::kOk);
    store_.release_reads(reads);
    return there;
  }

  static wire::KeepWish wish_of(uint8_t keep) {
    switch (static_cast<Keep>(keep)) {
      case Keep::kDemoted:
        return {wire::Intent::kDemote, 0};
      case Keep::kNormal:
        return {};
      case Keep::kWanted:
      case Keep::kRetained:
        return {wire::Intent::kRetain, 0};
    }
    throw std::invalid_argument("no such Keep");
  }

  // What is wanted of the chain: of pages next to each other of which the same is wanted at once, the tail first.
  void hint(const Request& request) {
    const auto begin = request.pages.begin();
    for (size_t end = request.pages.size(), first; end > 0; end = first) {
      for (first = end - 1; first > 0 && request.keep[first - 1] == request.keep[first];) --first;
      const wire::KeepWish wish = wish_of(request.keep[first]);
      if (wish.intent != wire::Intent::kNormal)
        store_.keep(
            block({begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(end)}),
            wish);
    }
  }

  void put(std::vector<uint32_t>& pages, std::vector<uint32_t>& depths, const wire::KeepWish& wish) {
    const std::vector<uint32_t> lengths(pages.size(), kPageBytes);
    PutRequest request;
    request.block = block(pages);
    request.fingerprints = request.block.fingerprints();
    request.lengths = reinterpret_cast<const uint8_t*>(lengths.data());
    request.depths = reinterpret_cast<const uint8_t*>(depths.data());
    request.total_bytes = uint64_t{kPageBytes} * pages.size();
    request.has_intent = wish.intent != wire::Intent::kNormal;
    request.keep = wish;
    const auto count = static_cast<uint32_t>(pages.size());
    std::vector<WriteEntry> writes(count);
    static const std::atomic<bool> never{false};
    store_.reserve_writes(request, 0, count, SegmentStore::Clock::now() + std::chrono::seconds(10), never,
                          writes);
    // What comes back from disk is compared.
    for (WriteEntry& write : writes)
      if (write.data != nullptr) write.digest = crc32c(0, write.data, kPageBytes);
    store_.seal_writes(request, writes);
    if (request.has_intent) {
      SegmentStore::Statuses statuses;
      for (const WriteEntry& write : writes) statuses.push_back(static_cast<uint8_t>(write.status));
      store_.keep_stored(request.block, wish, statuses);
    }
    pages.clear();
    depths.clear();
  }

  SegmentStore store_;
  std::vector<PageHash> hashes_;
};

// The policy alone, told of the same things in the same order, and of what is to be kept.
class Ranked {
 public:
  Ranked(const std::string& policy, uint32_t pages_max)
      : policy_(make_eviction_policy(policy, pages_max)), pages_(pages_max) {
    for (uint32_t slot = pages_max; slot-- > 0;) free_.push_back(slot);
  }

  Hits play(const std::vector<Request>& requests) {
    Hits hits;
    for (const Request& request : requests) {
      const std::vector<uint32_t>& pages = request.pages;
      std::vector<bool> there;
      for (const uint32_t page : pages) there.push_back(slots_.count(page) != 0);
      hits.count(there);
      for (size_t i = pages.size(); i-- > 0;) {
        if (!there[i]) continue;
        policy_->on_use(slots_[pages[i]]);
        policy_->on_keep(slots_[pages[i]], static_cast<Keep>(request.keep[i]));
      }
      for (size_t first = 0; first < pages.size(); first += kBatch)
        for (size_t i = std::min(pages.size(), first + kBatch); i-- > first;)
          if (!there[i]) put(pages[i], static_cast<uint32_t>(i), static_cast<Keep>(request.keep[i]));
    }
    return hits;
  }

 private:
  void put(uint32_t page, uint32_t depth, Keep keep) {
    if (slots_.count(page) != 0) return;
    if (free_.empty()) {
      const uint32_t victim = policy_->coldest();
      policy_->on_evict(victim);
      slots_.erase(pages_[victim]);
      free_.push_back(victim);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    pages_[slot] = page;
    slots_[page] = slot;
    policy_->on_insert({slot, mix64(uint64_t{page} + 1), 1, depth, keep});
  }

  std::unique_ptr<EvictionPolicy> policy_;
  std::vector<uint32_t> pages_;  // by slot
  std::vector<uint32_t> free_;
  std::unordered_map<uint32_t, uint32_t> slots_;
};

// What nobody can beat in block hits: who knows the future keeps what is used again soonest, and doesn't even take
// in what is used later than all of that.
inline Hits clairvoyant(const std::vector<Request>& requests, uint32_t pages_max) {
  constexpr uint64_t kNever = UINT64_MAX;
  std::vector<std::vector<uint64_t>> next(requests.size());
  std::unordered_map<uint32_t, uint64_t> later;
  for (size_t r = requests.size(); r-- > 0;) {
    for (const uint32_t page : requests[r].pages) {
      const auto found = later.find(page);
      next[r].push_back(found == later.end() ? kNever : found->second);
    }
    // Of one request the head first.
    for (size_t i = 0; i < requests[r].pages.size(); ++i) later[requests[r].pages[i]] = uint64_t{r} << 20 | i;
  }
  std::set<std::pair<uint64_t, uint32_t>> kept;  // when next, which
  std::unordered_map<uint32_t, uint64_t> when;
  Hits hits;
  for (size_t r = 0; r < requests.size(); ++r) {
    const std::vector<uint32_t>& pages = requests[r].pages;
    std::vector<bool> there;
    for (const uint32_t page : pages) there.push_back(when.count(page) != 0);
    hits.count(there);
    for (size_t i = 0; i < pages.size(); ++i) {
      const auto found = when.find(pages[i]);
      if (found != when.end()) kept.erase({found->second, pages[i]});
      when[pages[i]] = next[r][i];
      kept.insert({next[r][i], pages[i]});
      if (kept.size() <= pages_max) continue;
      when.erase(std::prev(kept.end())->second);
      kept.erase(std::prev(kept.end()));
    }
  }
  return hits;
}

}  // namespace kvstore::replay
