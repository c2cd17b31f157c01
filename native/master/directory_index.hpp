// The master's directory: fingerprint -> the segments that hold the object, and its length.
//
// An open-addressing table of {tag, first node} maps a fingerprint to a chain of location nodes, one a
// segment. Nodes live in fixed chunks (they never move), are threaded on a list per segment (dropping a
// segment costs its own entries only), and are accounted per segment and per namespace. An entry costs 40
// bytes of node and 11 to 23 bytes of table. Slots are removed by shifting back, so churn leaves no
// tombstones and probe lengths depend on the load alone.
//
// Threads: every public method takes the internal lock and may be called from any thread. Nothing returned
// points into the index. Errors: wire::WireError for malformed input (then nothing was changed),
// std::bad_alloc likewise.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "protocol/keys.hpp"
#include "protocol/wire.hpp"

namespace kvstore {

class DirectoryIndex {
 public:
  static constexpr uint32_t kSegmentsMax = 1u
                                           << 20;  // indexes are never reused, so this bounds a master's life
  static constexpr uint32_t kReplicasMax = 4;      // of one LOOKUP

  struct Applied {
    uint64_t added = 0;    // entries that were not there before
    uint64_t removed = 0;  // entries that were there
  };
  struct Usage {
    uint64_t entries = 0;
    uint64_t bytes = 0;
  };
  struct Found {
    std::vector<uint32_t> segments;
    uint32_t length = 0;
  };

  DirectoryIndex();
  DirectoryIndex(const DirectoryIndex&) = delete;
  DirectoryIndex& operator=(const DirectoryIndex&) = delete;

  // How many entries the groups have. Throws what `apply` would refuse of them, and changes nothing.
  static uint64_t check(const void* groups, size_t bytes);

  // Applies the groups of docs/protocol.md section 8 in order, all or nothing.
  Applied apply(uint32_t segment, const void* groups, size_t bytes);
  // Removes entries of a segment, all of them or entries_max at most; how many. Cheap slices keep readers
  // from waiting.
  uint64_t drop_segment(uint32_t segment, uint64_t entries_max = UINT64_MAX);
  // Between begin and end each ADD marks its entry as present; end removes the segment's entries that got no
  // mark.
  void begin_inventory(uint32_t segment);
  uint64_t end_inventory(uint32_t segment);
  // Entries of a segment that does not serve are kept, and not found. Segments serve until told otherwise.
  void set_serving(uint32_t segment, bool serving);

  // Request body -> the reply's own fields (docs/protocol.md section 5).
  wire::Writer exists(const void* body, size_t bytes) const;
  wire::Writer lookup(const void* body, size_t bytes) const;
  // Absent entries go to `segments` in turn, in runs of about run_bytes; an empty list refuses them.
  wire::Writer place(const void* body, size_t bytes, const std::vector<uint32_t>& segments,
                     uint64_t run_bytes) const;
  // What of a PLACE body is absent.
  Usage place_demand(const void* body, size_t bytes) const;

  // The segment's entries as ADD groups, at most entries_max in each chunk.
  std::vector<wire::Writer> snapshot(uint32_t segment, uint32_t entries_max) const;
  Usage segment_usage(uint32_t segment) const;
  std::vector<std::pair<NamespaceId, Usage>> namespace_usage() const;
  // All holders, serving or not.
  std::optional<Found> find(const Fingerprint& fingerprint) const;
  uint64_t entry_count() const;
  uint64_t memory_bytes() const;

 private:
  static constexpr uint32_t kNil = 0xFFFFFFFFu;
  static constexpr uint32_t kChunkBits = 14;
  static constexpr uint32_t kChunkNodes = 1u << kChunkBits;
  static constexpr uint32_t kMarkBit = 0x80000000u;

  struct Node {
    Fingerprint fingerprint;
    uint32_t segment;
    uint32_t length;
    uint32_t ns_mark;     // index in namespaces_; the top bit is the inventory mark
    uint32_t chain_next;  // next holder of the same fingerprint; next free node when free
    uint32_t segment_prev;
    uint32_t segment_next;
  };
  static_assert(sizeof(Node) == 40, "the memory budget per entry counts on it");

  // The home position is tag & mask, so the table grows and shifts without touching nodes.
  struct Slot {
    uint32_t tag;
    uint32_t head;  // kNil: empty
  };
  struct Segment {
    uint32_t head = kNil;
    bool serving = true;
    uint32_t mark = 0;  // 0 or kMarkBit: what an ADD stamps now
    Usage usage;
  };
  struct Namespace {
    NamespaceId id{};
    Usage usage;
  };
  struct Group {
    bool add;
    uint32_t count;
    NamespaceId ns;
    const uint8_t* fingerprints;
    const uint8_t* lengths;
  };

  static uint32_t tag_of(const Fingerprint& f) {
    // Fingerprints are SHA-256 output already; the product keeps even a peer's hand-made ones apart.
    return static_cast<uint32_t>(((f.lo ^ (f.hi << 32 | f.hi >> 32)) * 0x9E3779B97F4A7C15ull) >> 32);
  }
  static Fingerprint fingerprint_at(const uint8_t* fingerprints, size_t i);
  static std::vector<Group> parse_groups(const void* groups, size_t bytes);

  Node& node(uint32_t i) REQUIRES(mutex_) { return chunks_[i >> kChunkBits][i & (kChunkNodes - 1)]; }
  const Node& node(uint32_t i) const REQUIRES(mutex_) {
    return chunks_[i >> kChunkBits][i & (kChunkNodes - 1)];
  }
  Segment& segment_at(uint32_t segment) REQUIRES(mutex_);
  uint32_t namespace_index(const NamespaceId& ns) REQUIRES(mutex_);
  void release_namespace(uint32_t index) REQUIRES(mutex_);

  void reserve(uint64_t more_nodes) REQUIRES(mutex_);
  void grow_table(size_t capacity) REQUIRES(mutex_);
  // The slot of f, or the empty one where it would go.
  size_t find_slot(const Fingerprint& f, uint32_t tag) const REQUIRES(mutex_);
  void erase_slot(size_t slot) REQUIRES(mutex_);
  bool add(uint32_t segment, uint32_t ns, const Fingerprint& f, uint32_t length) REQUIRES(mutex_);
  bool remove(uint32_t segment, const Fingerprint& f) REQUIRES(mutex_);
  void unlink(size_t slot, uint32_t before, uint32_t target) REQUIRES(mutex_);
  void remove_node(uint32_t target) REQUIRES(mutex_);
  void account(uint32_t segment, uint32_t ns, uint32_t length, bool plus) REQUIRES(mutex_);

  const Node* first_serving(size_t slot) const REQUIRES(mutex_);
  // Calls visit(i, first serving node or nullptr) for each fingerprint, with the memory of later ones on its
  // way.
  template <typename Visit>
  void probe(const uint8_t* fingerprints, uint32_t count, Visit&& visit) const REQUIRES(mutex_);
  void prefetch_slot(uint32_t tag) const REQUIRES(mutex_) { __builtin_prefetch(&slots_[tag & mask_]); }
  void prefetch_node(uint32_t tag) const REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  size_t mask_ GUARDED_BY(mutex_) = 0;
  size_t used_slots_ GUARDED_BY(mutex_) = 0;  // distinct fingerprints
  std::vector<std::unique_ptr<Node[]>> chunks_ GUARDED_BY(mutex_);
  uint32_t free_head_ GUARDED_BY(mutex_) = kNil;
  uint64_t free_nodes_ GUARDED_BY(mutex_) = 0;
  uint64_t node_count_ GUARDED_BY(mutex_) = 0;
  std::vector<Segment> segments_ GUARDED_BY(mutex_);
  std::vector<Namespace> namespaces_ GUARDED_BY(mutex_);
  std::vector<uint32_t> free_namespaces_ GUARDED_BY(mutex_);
  std::map<NamespaceId, uint32_t> namespace_of_ GUARDED_BY(mutex_);
};

}  // namespace kvstore
