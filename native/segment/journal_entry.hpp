// One change of what a segment holds, as the directory is told of it.
#pragma once

#include <cstdint>

#include "protocol/keys.hpp"

namespace kvstore {

enum class JournalOp : uint8_t { kAdd = 1, kRemove = 2 };

struct JournalEntry {
  Fingerprint fp;
  NamespaceId ns;
  uint32_t length;
  JournalOp op;
};

}  // namespace kvstore
