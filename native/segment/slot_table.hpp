// Slot headers as they lie in the shared pool (docs/protocol.md section 7) and the only legal transitions
// between their states: free -> writing -> sealed -> free | quarantined, and writing -> free.
//
// Readers in other processes see these headers through a read-only map. They take the generation before and
// after a copy: odd, or different, means that the bytes may have changed under them. Not thread-safe among
// writers: the owner locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "protocol/keys.hpp"

namespace kvstore {

constexpr uint32_t kNoSlot = 0xFFFFFFFFu;

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
  uint8_t reserved[36];

  bool has_key(const Key& key) const {
    return hash == key.hash && ns == key.ns && pool == key.pool && shard == key.shard;
  }
  uint64_t stored_bytes() const { return uint64_t{length} + text_bytes; }
};
static_assert(sizeof(SlotHeader) == 128, "docs/protocol.md section 7");
static_assert(offsetof(SlotHeader, offset) == 16 && offsetof(SlotHeader, pool) == 38 &&
                  offsetof(SlotHeader, ns) == 40 && offsetof(SlotHeader, shard) == 48 &&
                  offsetof(SlotHeader, hash) == 60 && offsetof(SlotHeader, reserved) == 92,
              "docs/protocol.md section 7");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "other processes read the generation");

class SlotTable {
 public:
  // Formats `slot_count` headers at `base`, which must be zeroed memory, writable and alive as long as the
  // table.
  SlotTable(void* base, uint32_t slot_count);

  // Each is false, and changes nothing, when the header is damaged or not in the state that the transition
  // starts from.
  [[nodiscard]] bool begin_write(uint32_t slot, const Key& key, uint64_t offset, uint32_t length,
                                 uint16_t text_bytes, uint32_t depth) noexcept;
  [[nodiscard]] bool seal(uint32_t slot, uint8_t digest_alg, uint32_t digest) noexcept;
  [[nodiscard]] bool quarantine(uint32_t slot) noexcept;
  [[nodiscard]] bool free(uint32_t slot) noexcept;
  // Whatever the header holds: from now on every reader takes it for one that is being changed.
  void condemn(uint32_t slot) noexcept;

  const SlotHeader& header(uint32_t slot) const { return headers_[slot]; }
  uint32_t slot_count() const { return slot_count_; }

 private:
  template <typename Change>
  bool transition(uint32_t slot, bool legal, Change&& change) noexcept;

  SlotHeader* headers_;
  uint32_t slot_count_;
};

}  // namespace kvstore
