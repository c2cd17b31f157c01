// What of a segment's log is still alive, for rewriting that log from its oldest record on.
//
// An object is kept once: at the first record that adds it, if the segment holds it when that record is looked
// at. What the log said of it later, up to the point where the rewriting began, may then be left out; what it
// says after that point stays in the log and has the last word. The memory of it is a bit an entry of the index:
// a place that is freed and given to another object meanwhile keeps its mark, which is harmless, for that
// object was added after the rewriting began.
//
// Threads: one at a time. The index must outlive it. Errors: those of DirectoryIndex::check.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "master/directory_index.hpp"

namespace kvstore {

class LiveEntries {
 public:
  LiveEntries(const DirectoryIndex& index, uint32_t segment) : index_(index), segment_(segment) {}

  // Keeps what is alive of one record's groups; how many entries.
  uint64_t keep(const void* groups, size_t bytes);
  // What was kept since the last call, as ADD groups, one a namespace.
  wire::Writer take();

 private:
  struct Kept {
    NamespaceId ns;
    std::vector<DirectoryIndex::Held> entries;
  };

  const DirectoryIndex& index_;
  const uint32_t segment_;
  std::vector<bool> taken_;
  std::vector<Kept> kept_;  // in the order in which namespaces were met; there are few
};

}  // namespace kvstore
