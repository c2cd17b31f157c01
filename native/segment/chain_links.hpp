// Which page hangs on which: the parent of a page is the one before it in its prefix chain. Nobody says so; it is seen
// from the order in which pages come and are used, which is deepest first within a request. Pages at the ends of requests
// are linked by a guess: to what came or was used last at that depth. A wrong or missing link costs a page of a prefix at
// worst, so that nothing but the choice of victims may depend on it. Not thread-safe: the owner locks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "protocol/keys.hpp"
#include "segment/by_slot.hpp"

namespace kvstore {

class ChainLinks {
 public:
  explicit ChainLinks(uint32_t chunks_max) : links_(chunks_max), places_(chunks_max) {}

  // Chunks of slots, as of BySlot.
  void add_chunk(uint32_t chunk, uint32_t places) {
    links_.add(chunk, places);
    places_[chunk] = places;
  }
  void remove_chunk(uint32_t chunk) noexcept {
    links_.remove(chunk);
    places_[chunk] = 0;
  }

  // A request begins: what comes now does not go on with what came before.
  void begin_request() noexcept { now_ += kNear + 1; }
  // An object is findable from now on; `depth` is the position of its page in the chain.
  struct Page {
    NamespaceId ns{};
    uint16_t pool = 0;
    Shard shard{};
    uint32_t depth = 0;
  };
  void came(uint32_t slot, const Page& page) noexcept;
  void used(uint32_t slot) noexcept { touch(slot); }
  void gone(uint32_t slot) noexcept;

  // How many pages hang on it, as far as is known. Below kMany that is exact.
  uint32_t children(uint32_t slot) const { return links_[slot].children; }
  // What it hangs on, or kNoSlot.
  uint32_t parent(uint32_t slot) const;
  static constexpr uint16_t kMany = 0xFFFF;

 private:
  // Pages of one chain follow each other by as many steps as a page has shards, at most.
  static constexpr uint32_t kNear = 64;
  static constexpr uint32_t kSeen = 4096;
  struct Link {
    uint32_t number = 0;  // of the object; 0: there is none
    uint32_t parent = kNoSlot;
    uint32_t parent_number = 0;
    uint32_t depth = 0;
    uint32_t group = 0;     // of namespace, pool and shard
    uint16_t children = 0;  // from kMany on it is not counted
    bool guessed = false;   // that this is its parent
  };
  struct Seen {
    uint32_t slot = kNoSlot;
    uint32_t number = 0;
    uint32_t when = 0;
  };

  void touch(uint32_t slot) noexcept;
  Seen& seen(uint32_t group, uint32_t depth) { return seen_[mix64(uint64_t{group} << 32 | depth) % kSeen]; }
  // What was seen last of that depth, if it is still there.
  const Seen* last_seen(uint32_t group, uint32_t depth);
  bool is_there(uint32_t slot, uint32_t number) const;
  void link(uint32_t child, uint32_t parent, bool guessed) noexcept;
  void unlink(Link& child) noexcept;

  BySlot<Link> links_;
  std::vector<uint32_t> places_;  // by chunk; 0 where none is
  std::array<Seen, kSeen> seen_{};
  uint32_t last_number_ = 0;
  uint32_t now_ = 0;  // in objects that came or were used, and gaps
};

}  // namespace kvstore
