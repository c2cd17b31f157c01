#include <numeric>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "client/page_plan.hpp"

using namespace kvstore;

namespace {

uint64_t address_of(const void* p) { return reinterpret_cast<uint64_t>(p); }

// The slots of pages of four, in this order.
std::vector<int64_t> slots_of(const std::vector<int64_t>& pages) {
  std::vector<int64_t> slots;
  for (const int64_t page : pages)
    for (int64_t i = 0; i < 4; ++i) slots.push_back(page * 4 + i);
  return slots;
}

}  // namespace

TEST(pieces_lie_at_base_plus_stride_times_page_number) {
  std::vector<uint8_t> memory(1000);
  const uint64_t at = address_of(memory.data());
  // 26 bytes a page of 4 slots: no whole number a slot.
  const PagePlan plan({{{at, 26, 20}, {at + 500, 26, 6}}, {{at + 800, -1, 3}}}, 4, 40);
  const std::vector<int64_t> slots = slots_of({7, 0, 9});
  const Pieces pieces = plan.pieces(slots.data(), slots.size(), 3);
  CHECK_EQ(pieces.entry_count(), 6u);
  CHECK_EQ(pieces.shard_count(), 2u);
  CHECK_EQ(pieces.total_bytes(), 3u * 29);
  CHECK(pieces.piece(0, 0).iov_base == memory.data() + 7 * 26);
  CHECK(pieces.piece(0, 1).iov_base == memory.data() + 500 + 7 * 26);
  CHECK(pieces.piece(1, 0).iov_base == memory.data() + 800 - 7);
  CHECK(pieces.piece(2, 0).iov_base == memory.data());
  CHECK(pieces.piece(4, 0).iov_base == memory.data() + 9 * 26);
}

TEST(a_batch_outlives_the_plan_that_made_it) {
  uint8_t byte = 0;
  const std::vector<int64_t> slots = slots_of({0});
  const Pieces pieces = [&] {
    return PagePlan({{{address_of(&byte), 0, 1}}}, 4, 4).pieces(slots.data(), 4, 1);
  }();
  CHECK(pieces.piece(0, 0).iov_base == &byte);
}

TEST(slots_that_are_not_whole_aligned_pages_of_the_pool_are_refused) {
  uint8_t byte = 0;
  const PagePlan plan({{{address_of(&byte), 0, 1}}}, 4, 12);
  const auto refused = [&](const std::vector<int64_t>& slots, size_t key_count) {
    CHECK_THROWS(plan.check(slots.data(), slots.size(), key_count), std::invalid_argument);
    CHECK_THROWS(plan.pieces(slots.data(), slots.size(), key_count), std::invalid_argument);
  };
  plan.check(slots_of({2, 0}).data(), 8, 2);
  refused(slots_of({2, 0}), 1);
  refused(slots_of({2, 0}), 3);
  refused({0, 1, 2}, 1);
  refused({0, 1, 2}, 0);
  refused({1, 2, 3, 4}, 1);
  refused(slots_of({3}), 1);
  refused(slots_of({-1}), 1);
  for (size_t wrong = 0; wrong < 8; ++wrong)
    for (const int64_t by : {int64_t{-4}, int64_t{-1}, int64_t{1}, int64_t{4}, INT64_MAX / 2}) {
      std::vector<int64_t> slots = slots_of({1, 2});
      slots[wrong] += by;
      refused(slots, 2);
    }
  CHECK_THROWS(plan.check(nullptr, 4, 1), std::invalid_argument);
}

TEST(a_plan_without_pieces_only_checks) {
  const PagePlan plan({}, 4, 12);
  const std::vector<int64_t> slots = slots_of({2, 0});
  plan.check(slots.data(), 8, 2);
  CHECK_THROWS(plan.pieces(slots.data(), 8, 2), std::invalid_argument);
}

TEST(pages_of_no_slots_are_refused) {
  CHECK_THROWS(PagePlan({}, 0, 12), std::invalid_argument);
  CHECK_THROWS(PagePlan({}, -4, 12), std::invalid_argument);
  CHECK_THROWS(PagePlan({}, 4, -1), std::invalid_argument);
}

TEST_MAIN()
