// One change of what a segment holds, as the directory is told of it.
#pragma once

#include <cstdint>

#include "protocol/keys.hpp"

namespace kvstore {

// kStays: nothing that a directory is told. The object left memory, and the segment has it still.
enum class JournalOp : uint8_t { kStays = 0, kAdd = 1, kRemove = 2 };

struct JournalEntry {
  Fingerprint fp;
  NamespaceId ns;
  uint32_t length;
  JournalOp op;
};

}  // namespace kvstore
