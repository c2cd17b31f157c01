// What a fuzz target is made of. One is a file targets/fuzz_<name>.cpp that defines fuzz_one() and seeds(); what calls them is the
// driver of our own (driver.cpp), or libFuzzer (libfuzzer.cpp).
//
// A target may throw nothing and leave nothing behind. What must hold of any input is said by HOLDS; sanitizers see the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace kvstore::fuzz {

using Bytes = std::vector<uint8_t>;

// An input to begin with.
struct Seed {
  std::string name;
  Bytes bytes;
};

// Ends the process, which is what both fuzzers take for a finding.
[[noreturn]] inline void broken(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
  std::abort();
}

// Takes numbers off the front of an input that is no message by itself; zeros once it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), left_(size) {}

  template <typename T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const size_t n = left_ < sizeof(T) ? left_ : sizeof(T);
    if (n > 0) std::memcpy(&value, at_, n);
    skip(n);
    return value;
  }
  // At most `n` bytes.
  Bytes bytes(size_t n) {
    if (n > left_) n = left_;
    Bytes out(at_, at_ + n);
    skip(n);
    return out;
  }
  Bytes rest() { return bytes(left_); }
  size_t left() const { return left_; }

 private:
  void skip(size_t n) {
    at_ += n;
    left_ -= n;
  }
  const uint8_t* at_;
  size_t left_;
};

// A frame of the golden vectors.
struct Golden {
  std::string name, kind;
  Bytes frame;
};

// All of tests/vectors/protocol_v2.txt: seeds come from there, so that they never fall behind the protocol.
inline std::vector<Golden> golden_frames() {
  std::ifstream in(KVSTORE_VECTORS_DIR "/protocol_v2.txt");
  std::vector<Golden> all;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    Golden golden;
    std::string word;
    words >> golden.name >> golden.kind;
    while (words >> word) {
    }
    for (size_t i = 0; i + 1 < word.size(); i += 2)
      golden.frame.push_back(static_cast<uint8_t>(std::stoul(word.substr(i, 2), nullptr, 16)));
    all.push_back(golden);
  }
  if (all.empty()) broken(__FILE__, __LINE__, "the golden vectors are there");
  return all;
}

inline std::vector<Seed> golden_seeds(const std::string& kind) {
  std::vector<Seed> seeds;
  for (const Golden& golden : golden_frames())
    if (golden.kind == kind) seeds.push_back({golden.name, golden.frame});
  return seeds;
}

// The target's own.
std::vector<Seed> seeds();
int fuzz_one(const uint8_t* data, size_t size);

}  // namespace kvstore::fuzz

#define HOLDS(condition)                                                       \
  do {                                                                         \
    if (!(condition)) ::kvstore::fuzz::broken(__FILE__, __LINE__, #condition); \
  } while (0)
