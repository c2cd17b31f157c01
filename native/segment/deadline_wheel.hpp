// Deadlines of many things, found in the order in which they pass, without looking at those that have not: a
// timing wheel of intrusive lists. Adding and removing are O(1) and allocate nothing; what lies farther ahead
// than the wheel's span (over eight minutes) goes round once more. Not thread-safe: the owner locks. Times are
// milliseconds of any clock that doesn't go back.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace kvstore {

class DeadlineWheel {
 public:
  // Part of the thing that has the deadline. It stays in place while it is in the wheel.
  struct Node {
    uint64_t deadline_ms = 0;
    Node* previous = nullptr;
    Node* next = nullptr;
  };

  DeadlineWheel() {
    for (Node& end : ends_) end.previous = end.next = &end;
  }
  DeadlineWheel(const DeadlineWheel&) = delete;
  DeadlineWheel& operator=(const DeadlineWheel&) = delete;

  void add(Node& node) noexcept {
    // The tick after the deadline, so that whoever gets there finds it passed; never the one that is being looked
    // at, which comes to an end however many go round once more.
    const uint64_t tick = std::clamp(node.deadline_ms / kTickMs + 1, next_tick_ + 1, next_tick_ + kTicks - 1);
    Node& end = ends_[tick % kTicks];
    node.previous = end.previous;
    node.next = &end;
    end.previous->next = &node;
    end.previous = &node;
    ++size_;
  }
  void remove(Node& node) noexcept {
    node.previous->next = node.next;
    node.next->previous = node.previous;
    node.previous = node.next = nullptr;
    --size_;
  }

  // Calls each(node) for nodes whose deadlines have passed, which it takes out before. Looks at `steps_max` of
  // them at most: what is left is found next time.
  template <typename Each>
  void pass(uint64_t now_ms, uint32_t steps_max, Each&& each) {
    const uint64_t now_tick = now_ms / kTickMs;
    for (; next_tick_ <= now_tick; ++next_tick_) {
      if (size_ == 0) {
        next_tick_ = now_tick + 1;
        return;
      }
      for (Node& end = ends_[next_tick_ % kTicks]; end.next != &end;) {
        if (steps_max-- == 0) return;
        Node& node = *end.next;
        remove(node);
        if (node.deadline_ms > now_ms)
          add(node);
        else
          each(node);
      }
    }
  }

  uint64_t size() const { return size_; }

 private:
  static constexpr uint64_t kTickMs = 128;
  static constexpr uint64_t kTicks = 4096;

  std::array<Node, kTicks> ends_;
  uint64_t next_tick_ = 0;  // the first that has not been looked at
  uint64_t size_ = 0;
};

}  // namespace kvstore
