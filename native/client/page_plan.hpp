// The pages of an engine's host pool: of the slots that it names for a batch, which pages they are and where those lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/pieces.hpp"

namespace kvstore {

// Immutable and thread-safe; made once a pool, so that a batch costs no more than a look at its slots.
class PagePlan {
 public:
  // Piece j of shard s of page number p lies at plan[s][j].base + plan[s][j].stride * p. With an empty plan only
  // check() can be called. Throws std::invalid_argument when page_size is not positive or slot_count negative.
  PagePlan(Pieces::Plan plan, int64_t page_size, int64_t slot_count);

  // `slots`: page_size of them for each of key_count pages. Throws std::invalid_argument unless each is one aligned page
  // of the pool, its slots in order.
  void check(const int64_t* slots, size_t count, size_t key_count) const {
    page_numbers(slots, count, key_count);
  }
  // The memory of those pages. Throws as check() does, and as Pieces::of_plan().
  Pieces pieces(const int64_t* slots, size_t count, size_t key_count) const;

 private:
  std::vector<int64_t> page_numbers(const int64_t* slots, size_t count, size_t key_count) const;

  std::shared_ptr<const Pieces::Plan> plan_;
  int64_t page_size_, slot_count_;
};

}  // namespace kvstore
