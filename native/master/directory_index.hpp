// The master's directory: fingerprint -> the segments that hold the object, and its length.
//
// A hash table (fingerprint_table.hpp) maps a fingerprint to a chain of locations, one a segment
// (location_store.hpp). Each location is on a list of its segment, so that dropping a segment or replacing
// its inventory costs nothing at once: whole lists change hands, and `sweep` frees what is doomed a little at
// a time. An entry takes 40 bytes of location and 10.7 to 21.4 bytes of table.
//
// Threads: every public method takes the internal lock and may be called from any thread. None holds it for
// longer than its own arguments are long, however many entries there are. Nothing returned points into the index.
// Errors: wire::WireError for malformed input (then nothing was changed), std::bad_alloc likewise.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "master/fingerprint_table.hpp"
#include "master/location_store.hpp"
#include "master/namespace_accounts.hpp"
#include "protocol/keyed_hash.hpp"
#include "protocol/keys.hpp"
#include "protocol/wire.hpp"

namespace kvstore {

class DirectoryIndex {
 public:
  // Indexes are never reused, so this bounds a master's life.
  static constexpr uint32_t kSegmentsMax = 1u << 20;
  static constexpr uint32_t kReplicasMax = wire::kReplicasMax;

  struct Applied {
    uint64_t added = 0;    // entries that were not there before
    uint64_t removed = 0;  // entries that were there
  };
  using Usage = kvstore::Usage;
  // Answers to a PLACE that asks for several copies.
  struct CopiesPlaced {
    wire::Writer reply{0};
    uint64_t beside = 0;    // copies on a host that has one already: there was no other
    uint64_t short_of = 0;  // copies of what is named or there for which there was no segment
  };
  struct Found {
    std::vector<uint32_t> segments;
    uint32_t length = 0;
  };
  // A snapshot that can't be completed: what it was of has been replaced meanwhile.
  struct SnapshotBroken : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  struct Held {
    Fingerprint fingerprint;
    uint32_t length;
    NamespaceId ns;
  };

  DirectoryIndex() = default;
  explicit DirectoryIndex(const KeyedHash& hash) : hash_(hash) {}
  DirectoryIndex(const DirectoryIndex&) = delete;
  DirectoryIndex& operator=(const DirectoryIndex&) = delete;

  // How many entries the groups have. Throws what `apply` would refuse of them, and changes nothing.
  static uint64_t check(const void* groups, size_t bytes);

  // Applies the groups of docs/protocol.md section 8 in order, all or nothing.
  Applied apply(uint32_t segment, const void* groups, size_t bytes);

  // Between begin and end each ADD confirms its entry; end dooms the segment's entries that were not confirmed.
  // An inventory that is begun again starts over. O(1), both.
  void begin_inventory(uint32_t segment);
  void end_inventory(uint32_t segment);
  // Dooms all entries of a segment. O(1).
  void drop_segment(uint32_t segment);
  // Removes doomed entries, entries_max at most; how many. Until then they are there as before, and an ADD saves
  // one.
  uint64_t sweep(uint64_t entries_max);

  // From now on notes pages of which a further copy is added, `pages_max` at most until they are taken; 0: none, and forgets those
  // that it has.
  void track_duplicates(size_t pages_max);
  // Some of them, the newest first; at most `pages_max`.
  std::vector<Fingerprint> take_duplicates(size_t pages_max);
  // The holders that serve, are vouched for and agree on the length, at most kReplicasMax, and the namespace that the first of them
  // has the page in; none when there is no such holder.
  std::pair<NamespaceId, std::vector<uint32_t>> vouched_holders(const Fingerprint& fingerprint) const;

  // Gives all memory back, of an index that nobody asks any more: in gigabytes that takes a while, so not from
  // where it goes out of scope.
  void clear();

  // Entries of a segment that does not serve are kept, and not found. Segments serve until told otherwise.
  void set_serving(uint32_t segment, bool serving);
  // Whether what a segment holds counts as there when new objects are placed: it serves, and is known to be alive. Segments
  // are until told otherwise.
  void set_vouched(uint32_t segment, bool vouched);
  // Copies are kept apart by it: a number that the segments of one host share. 0, until told otherwise: a host of its own.
  void set_host(uint32_t segment, uint32_t host);

  // Request body -> the reply's own fields (docs/protocol.md section 5).
  wire::Writer exists(const void* body, size_t bytes) const;
  wire::Writer lookup(const void* body, size_t bytes) const;
  // Absent entries go to `segments` in turn, in runs of about run_bytes; an empty list refuses them.
  wire::Writer place(const void* body, size_t bytes, const std::vector<uint32_t>& segments,
                     uint64_t run_bytes) const;
  // The same for `replicas` copies of each, 2 to kReplicasMax: those that are missing, of what is there already as well. A run
  // goes to one of `stripes`, the segments for its first copies and for further ones, no host twice where that can be.
  CopiesPlaced place_copies(const void* body, size_t bytes, uint32_t replicas,
                            const std::vector<std::vector<uint32_t>>& stripes, uint64_t run_bytes) const;
  // How many copies of a PLACE body are missing, of `replicas` each, and their bytes.
  Usage place_demand(const void* body, size_t bytes, uint32_t replicas = 1) const;

  // A segment's entries as ADD groups, a chunk at a time, while the index goes on changing. An entry that is there
  // from the first chunk to the last is in one of them; what comes or goes meanwhile may be or not. The index
  // outlives it. One thread at a time.
  class Snapshot {
   public:
    // entries_max: in a chunk, 1 to wire::kEntriesMax (else WireError).
    Snapshot(DirectoryIndex& index, uint32_t segment, uint32_t entries_max);
    ~Snapshot();
    Snapshot(const Snapshot&) = delete;
    Snapshot& operator=(const Snapshot&) = delete;

    // The next chunk; nothing after the last. SnapshotBroken: the segment was dropped, or an inventory began, ended
    // or confirmed entries.
    std::optional<wire::Writer> next();

   private:
    friend class DirectoryIndex;
    struct Entry {
      Fingerprint fingerprint;
      uint32_t length;
      uint32_t ns;  // position in `namespaces`
    };
    static wire::Writer encoded(std::vector<Entry>& entries, const std::vector<NamespaceId>& namespaces);

    DirectoryIndex& index_;
    const uint32_t entries_max_;
    // Guarded by the index's lock.
    const uint32_t segment_;
    uint32_t at_;  // the location to come next
    bool in_unconfirmed_ = false;
    bool broken_ = false;
  };

  // Of the objects that `groups` ADD, those that the segment holds now and that are not marked in `taken` yet,
  // as they are now, in order; marks them. The marks stand for places in the index, not for objects: see
  // LiveEntries.
  std::vector<Held> take_held(uint32_t segment, const void* groups, size_t bytes,
                              std::vector<bool>& taken) const;
  Usage segment_usage(uint32_t segment) const;
  Usage namespace_usage(const NamespaceId& ns) const;
  // By segment; those that have nothing of it are left out.
  std::vector<std::pair<uint32_t, Usage>> namespace_parts(const NamespaceId& ns) const;
  std::vector<std::pair<NamespaceId, Usage>> namespace_usage() const;
  // All holders, serving or not.
  std::optional<Found> find(const Fingerprint& fingerprint) const;
  uint64_t entry_count() const;
  uint64_t memory_bytes() const;

 private:
  struct Segment {
    bool serving = true;
    bool vouched = true;
    uint32_t host = 0;
    bool has_doomed = false;  // its inventory did not name all that is still here: none of it is evidence
    LocationList entries;
    LocationList unconfirmed;  // while an inventory is coming in
    Usage usage;
  };
  struct Group {
    bool add;
    uint32_t count;
    NamespaceId ns;
    uint32_t ns_number;
    const uint8_t* fingerprints;
    const uint8_t* lengths;
  };

  static Fingerprint fingerprint_at(const uint8_t* fingerprints, size_t i) {
    Fingerprint f;
    std::memcpy(&f.lo, fingerprints + i * kFingerprintBytes, 8);
    std::memcpy(&f.hi, fingerprints + i * kFingerprintBytes + 8, 8);
    return f;
  }
  uint32_t tag_of(const Fingerprint& f) const { return static_cast<uint32_t>(hash_(f) >> 32); }
  static std::vector<Group> parse_groups(const void* groups, size_t bytes);

  Segment& segment_at(uint32_t segment) REQUIRES(mutex_);
  void hold_namespaces(std::vector<Group>& groups, uint32_t segment) REQUIRES(mutex_);
  bool add(uint32_t segment, uint32_t ns, const Fingerprint& f, uint32_t tag, uint32_t length)
      REQUIRES(mutex_);
  bool remove(uint32_t segment, const Fingerprint& f, uint32_t tag) REQUIRES(mutex_);
  void unlink(FingerprintTable::Slot& slot, uint32_t before, uint32_t target) REQUIRES(mutex_);
  void remove_location(uint32_t target, uint32_t tag) REQUIRES(mutex_);
  void unlist(uint32_t target) REQUIRES(mutex_);
  void break_snapshots(uint32_t segment) REQUIRES(mutex_);

  const Location* first_serving(uint32_t head) const REQUIRES(mutex_);
  // From there on in the chain, the first holder that counts as evidence; nullptr: there is none.
  const Location* first_vouched(const Location* from) const REQUIRES(mutex_);
  // The holders that count as evidence and agree with the first of them on the length; how many, at most kReplicasMax.
  uint32_t vouched_holders(const Location* first, uint32_t* holders) const REQUIRES(mutex_);
  bool share_host(uint32_t a, uint32_t b) const REQUIRES(mutex_);
  // Calls visit(i, first serving location or nullptr) for each fingerprint, with the memory of later ones on its
  // way.
  template <typename Visit>
  void probe(const uint8_t* fingerprints, uint32_t count, Visit&& visit) const REQUIRES(mutex_);
  void prefetch_location(uint32_t tag) const REQUIRES(mutex_) {
    const uint32_t head = table_.likely_head(tag);
    if (head != kNoLocation) __builtin_prefetch(&locations_[head]);
  }

  const KeyedHash hash_;
  mutable Mutex mutex_;
  FingerprintTable table_ GUARDED_BY(mutex_);
  LocationStore locations_ GUARDED_BY(mutex_);
  NamespaceAccounts namespaces_ GUARDED_BY(mutex_);
  std::vector<Segment> segments_ GUARDED_BY(mutex_);
  LocationList doomed_ GUARDED_BY(mutex_);
  std::vector<Snapshot*> snapshots_ GUARDED_BY(mutex_);  // those that are being taken
  std::vector<Fingerprint> duplicates_
      GUARDED_BY(mutex_);  // never grows beyond the room that was made for it
};

}  // namespace kvstore
