// Slot headers as they lie in the shared pool (docs/protocol.md section 7) and the only legal transitions
// between their states: free -> writing -> sealed -> free | quarantined, and writing -> free.
//
// Headers lie in chunks: a chunk is a range of the pool that begins with a header of its own and holds one slot
// header behind the other. The first chunk lies at a fixed place; the others are found by following `next`.
//
// Readers in other processes see these headers through a read-only map. They take the generation before and
// after a copy: odd, or different, means that the bytes may have changed under them. What was a slot header may
// become an object's bytes when its chunk is given back, so generations begin at a number that no bytes are
// likely to spell. Not thread-safe among writers: the owner locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/keys.hpp"
#include "segment/by_slot.hpp"

namespace kvstore {

enum class SlotState : uint8_t { kFree = 0, kWriting = 1, kSealed = 2, kQuarantined = 3 };

struct SlotHeader {
  static constexpr uint32_t kMagic = 0x544F4C53;  // "SLOT"
  static constexpr uint16_t kVersion = 1;

  std::atomic<uint64_t> generation;
  uint32_t magic;
  uint16_t version;
  SlotState state;
  uint8_t digest_alg;
  uint64_t offset;  // of the bytes in the map
  uint32_t length;
  uint32_t digest;
  uint32_t depth;
  uint16_t text_bytes;
  uint16_t pool;
  NamespaceId ns;
  Shard shard;
  PageHash hash;
  uint8_t removed;  // 1: sealed, but taken away; its bytes stay for those who read them
  uint8_t reserved[3];
  uint64_t
      seq;  // the journal number that the newest change has, or is going to have: ADD or REMOVE; 0: being written
  uint32_t check;  // over what stands before `removed`, at the last change of the generation
  uint8_t reserved2[20];

  bool has_key(const Key& key) const {
    return hash == key.hash && ns == key.ns && pool == key.pool && shard == key.shard;
  }
  uint64_t stored_bytes() const { return uint64_t{length} + text_bytes; }
  // What `check` is to be when the generation is this.
  uint32_t check_at(uint64_t at_generation) const;
};
static_assert(sizeof(SlotHeader) == 128, "docs/protocol.md section 7");
static_assert(offsetof(SlotHeader, offset) == 16 && offsetof(SlotHeader, pool) == 38 &&
                  offsetof(SlotHeader, ns) == 40 && offsetof(SlotHeader, shard) == 48 &&
                  offsetof(SlotHeader, hash) == 60 && offsetof(SlotHeader, removed) == 92 &&
                  offsetof(SlotHeader, seq) == 96 && offsetof(SlotHeader, check) == 104,
              "docs/protocol.md section 7");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "other processes read the generation");

struct ChunkHeader {
  static constexpr uint32_t kMagic = 0x4B4E4843;  // "CHNK"
  static constexpr uint16_t kVersion = 1;

  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  uint64_t chunk_bytes;  // of the chunk with this header: a multiple of 128
  uint64_t next;         // offset of the next chunk in the map; 0: it is the last one
  uint8_t reserved2[104];
};
static_assert(sizeof(ChunkHeader) == sizeof(SlotHeader), "a chunk's header stands where a slot's would");

class SlotTable {
 public:
  // The map begins with a page that is not the table's; the first chunk is behind it.
  static constexpr uint64_t kFirstChunkOffset = 4096;
  static constexpr uint64_t kChunkBytesMax = uint64_t{kChunkSlots} * sizeof(SlotHeader);

  // `base` is the map of the pool, writable, and outlives the table. Of the chunks the first is made, or when
  // the pool is one that was `kept` it is taken as it is: its header must have been checked.
  SlotTable(uint8_t* base, uint64_t first_chunk_bytes, uint32_t chunks_max, bool kept);

  // Whether a chunk that can be used begins at `offset` of a map of `map_bytes`.
  static bool is_chunk(const uint8_t* base, uint64_t map_bytes, uint64_t offset);

  // Formats a chunk of free slots at `offset`, a multiple of 128, and links it. Returns its number, the lowest one
  // that is not in use, or kChunksMax when there is none left. Throws std::bad_alloc and changes nothing.
  uint32_t add_chunk(uint64_t offset, uint64_t chunk_bytes);
  // Takes one over that was linked in a pool that was kept, headers as they are.
  uint32_t adopt_chunk(uint64_t offset);
  // Unlinks it. What its memory holds from now on is nothing of ours.
  void remove_chunk(uint32_t chunk) noexcept;
  // Where the last chunk says that another one follows; 0: none.
  uint64_t next_offset() const { return chunk_header(list_.back()).next; }
  // None follows.
  void end_links() noexcept { chunk_header(list_.back()).next = 0; }

  bool has_chunk(uint32_t chunk) const { return chunk < chunks_end_ && chunks_[chunk].places > 0; }
  uint64_t chunk_offset(uint32_t chunk) const { return chunks_[chunk].offset; }
  // Its slots are 1 .. places - 1.
  uint32_t places(uint32_t chunk) const { return chunks_[chunk].places; }
  uint32_t chunks_end() const { return chunks_end_; }  // above the number of every chunk that there ever was

  // Each is false, and changes nothing, when the header is damaged or not in the state that the transition
  // starts from.
  [[nodiscard]] bool begin_write(uint32_t slot, const Key& key, uint64_t offset, uint32_t length,
                                 uint16_t text_bytes, uint32_t depth) noexcept;
  [[nodiscard]] bool seal(uint32_t slot, uint8_t digest_alg, uint32_t digest, uint64_t seq) noexcept;
  [[nodiscard]] bool quarantine(uint32_t slot) noexcept;
  [[nodiscard]] bool free(uint32_t slot) noexcept;
  // Whatever the header holds: from now on every reader takes it for one that is being changed.
  void condemn(uint32_t slot) noexcept;
  // Whatever the header holds: a free slot, with a generation that it never had.
  void format(uint32_t slot) noexcept;
  // The journal number of the object's ADD is this one. No transition.
  void set_seq(uint32_t slot, uint64_t seq) noexcept { at(slot).seq = seq; }
  // The object is taken away, by the journal entry of this number. No transition: readers go on.
  void set_removed(uint32_t slot, uint64_t seq) noexcept;

  const SlotHeader& header(uint32_t slot) const {
    const Chunk& chunk = chunks_[chunk_of(slot)];
    return reinterpret_cast<const SlotHeader*>(base_ + chunk.offset)[place_of(slot)];
  }
  // The number by which other processes know it: where its header lies, in headers from the map's beginning.
  uint32_t wire_number(uint32_t slot) const {
    return static_cast<uint32_t>(chunks_[chunk_of(slot)].offset / sizeof(SlotHeader)) + place_of(slot);
  }

 private:
  struct Chunk {
    uint64_t offset = 0;
    uint32_t places = 0;
  };
  template <typename Change>
  bool transition(uint32_t slot, bool legal, Change&& change) noexcept;
  SlotHeader& at(uint32_t slot) { return const_cast<SlotHeader&>(header(slot)); }
  ChunkHeader& chunk_header(uint32_t chunk) const {
    return *reinterpret_cast<ChunkHeader*>(base_ + chunks_[chunk].offset);
  }
  uint32_t take_number();
  uint64_t fresh_generation() noexcept;

  uint8_t* base_;
  uint64_t next_generation_;   // even, at a place that nobody can guess
  std::vector<Chunk> chunks_;  // by number, as many as there can be; places is 0 where none is
  uint32_t chunks_end_ = 0;
  std::vector<uint32_t> list_;  // numbers in the order of the links
};

}  // namespace kvstore
