#include "client/page_plan.hpp"

#include <stdexcept>
#include <string>
#include <utility>

namespace kvstore {
namespace {

// Whether slots[i] is first + i throughout. Without a way out in between, so that the compiler takes many at a time.
bool in_order(const int64_t* slots, size_t count, int64_t first) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i)
    wrong |= static_cast<uint64_t>(slots[i]) ^ (static_cast<uint64_t>(first) + i);
  return wrong == 0;
}

}  // namespace

PagePlan::PagePlan(Pieces::Plan plan, int64_t page_size, int64_t slot_count)
    : plan_(std::make_shared<const Pieces::Plan>(std::move(plan))),
      page_size_(page_size),
      slot_count_(slot_count) {
  if (page_size < 1 || slot_count < 0)
    throw std::invalid_argument("a pool of " + std::to_string(slot_count) + " slots in pages of " +
                                std::to_string(page_size));
}

Pieces PagePlan::pieces(const int64_t* slots, size_t count, size_t key_count) const {
  return Pieces::of_plan(plan_, page_numbers(slots, count, key_count));
}

std::vector<int64_t> PagePlan::page_numbers(const int64_t* slots, size_t count, size_t key_count) const {
  const auto page = static_cast<size_t>(page_size_);
  if (count % page != 0 || count / page != key_count || (slots == nullptr && count > 0))
    throw std::invalid_argument(std::to_string(key_count) + " pages of " + std::to_string(page_size_) +
                                " slots don't have " + std::to_string(count) + " host indices");
  std::vector<int64_t> numbers(key_count);
  for (size_t i = 0; i < key_count; ++i, slots += page) {
    const int64_t first = slots[0], last = slots[page - 1];
    if (first < 0 || last >= slot_count_ || first % page_size_ != 0 || !in_order(slots, page, first))
      throw std::invalid_argument("host slots " + std::to_string(first) + ".." + std::to_string(last) +
                                  " are not one aligned page of a pool of " + std::to_string(slot_count_) +
                                  " slots");
    numbers[i] = first / page_size_;
  }
  return numbers;
}

}  // namespace kvstore
