// A hash of fingerprints under a secret key. Whoever chooses page keys chooses fingerprints, so a table that
// is probed under a lock must not take its positions from them alone: a few thousand that fall together would
// make each probe walk over all of them.
#pragma once

#include <cstdint>
#include <random>

#include "protocol/keys.hpp"

namespace kvstore {

// Two fingerprints that were chosen without knowing the key agree in any k bits of the result with
// probability 2^-k: the sum is strongly universal (multiply-shift by 128 bits of key a word, of which the upper
// half is kept), and what follows is a permutation, which only takes apart what arithmetic progressions
// would line up.
class KeyedHash {
 public:
  // A key that nobody can know.
  KeyedHash() {
    std::random_device device;
    draw(device);
  }
  // The same key each time: for tests.
  explicit KeyedHash(uint64_t seed) {
    std::mt19937_64 generator(seed);
    draw(generator);
  }

  uint64_t operator()(const Fingerprint& f) const {
    return mix64(static_cast<uint64_t>((a_ * f.lo + b_ * f.hi + c_) >> 64));
  }

 private:
  __extension__ using Word = unsigned __int128;

  template <typename Source>
  void draw(Source& source) {
    for (Word* word : {&a_, &b_, &c_})
      for (int i = 0; i < 4; ++i) *word = *word << 32 | static_cast<uint32_t>(source());
  }

  Word a_ = 0, b_ = 0, c_ = 0;
};

}  // namespace kvstore
