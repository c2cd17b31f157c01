// Inputs made of others by small changes, the same for the same seed on every machine.
#pragma once

#include <random>

#include "fuzz.hpp"

namespace kvstore::fuzz {

class Mutator {
 public:
  // `corpus` has at least one input.
  Mutator(std::vector<Bytes> corpus, uint64_t seed) : corpus_(std::move(corpus)), random_(seed) {}

  // One of the corpus with one to a few changes: bits, bytes, numbers that are often lengths or counts, stretches taken out, doubled,
  // or put in from another input; cut short; made longer.
  Bytes next();

  static constexpr size_t kBytesMax = 64u << 10;

 private:
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  void change(Bytes& bytes);
  void change_number(Bytes& bytes);

  const std::vector<Bytes> corpus_;
  std::mt19937_64 random_;
};

}  // namespace kvstore::fuzz
