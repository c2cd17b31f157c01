// The driver's inputs: the same for the same seed, and able to find a mistake.
#include "check.hpp"
#include "mutator.hpp"

using namespace kvstore::fuzz;

namespace {

// A message of a u32 length and so many bytes, as a careless parser reads it.
bool reads_too_far(const Bytes& input) {
  if (input.size() < 8) return false;
  uint32_t magic = 0, length = 0;
  std::memcpy(&magic, input.data(), 4);
  std::memcpy(&length, input.data() + 4, 4);
  return magic == 0x3153564B && length > input.size() - 8;
}

Bytes message() {
  Bytes bytes(40, 7);
  const uint32_t head[2] = {0x3153564B, 32};
  std::memcpy(bytes.data(), head, sizeof(head));
  return bytes;
}

}  // namespace

TEST(the_same_seed_makes_the_same_inputs_and_another_one_others) {
  Mutator one({message(), Bytes()}, 5), same({message(), Bytes()}, 5), other({message(), Bytes()}, 6);
  int differ = 0;
  for (int i = 0; i < 200; ++i) {
    const Bytes made = one.next();
    CHECK(made == same.next());
    CHECK(made.size() <= Mutator::kBytesMax);
    differ += made != other.next();
  }
  CHECK(differ > 100);
}

TEST(a_length_that_is_believed_is_found_soon) {
  Mutator mutator({message()}, 1);
  int found = 0;
  for (int i = 0; i < 1000; ++i) found += reads_too_far(mutator.next());
  CHECK(found > 10);
}

TEST(a_corpus_of_nothing_still_makes_inputs) {
  Mutator mutator({Bytes()}, 1);
  size_t bytes = 0;
  for (int i = 0; i < 200; ++i) bytes += mutator.next().size();
  CHECK(bytes > 0);
}

TEST_MAIN()
