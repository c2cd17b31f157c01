// Whether it pays to ask segments for pages before the directory has said who has them: it does while most pages that
// are asked for are there. Thread-safe; a lost update costs a guess.
#pragma once

#include <atomic>
#include <cstddef>

namespace kvstore {

class GuessLuck {
 public:
  bool worth_it() const { return score_.load(std::memory_order_relaxed) > 0; }
  // Of `asked` pages so many were there.
  void learn(size_t found, size_t asked) {
    const int score = score_.load(std::memory_order_relaxed);
    if (2 * found >= asked)
      score_.store(score < kMax ? score + 1 : kMax, std::memory_order_relaxed);
    else
      score_.store(score > -kMax ? score - 1 : -kMax, std::memory_order_relaxed);
  }

 private:
  static constexpr int kMax = 3;
  std::atomic<int> score_{1};
};

}  // namespace kvstore
