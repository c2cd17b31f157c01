// Hands a target to libFuzzer, which has main(). The seeds are written by the target's driver (--write-seeds).
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return kvstore::fuzz::fuzz_one(data, size);
}
