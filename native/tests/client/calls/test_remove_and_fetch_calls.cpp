#include "client/page_client_fixture.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

TEST(a_removed_object_is_gone_and_a_fetch_finds_only_what_is_there) {
  Fixture f;
  TestSegment segment(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(4 * 5000);
  fill(memory.data(), memory.size(), 9);
  Batch b(4, 1, 5000, 1, 9, memory.data());
  f.put(b);
  Batch first(1, 1, 5000, 1, 9, memory.data());
  f.client.remove(f.handle, first.keys, Deadline::after_ms(kPlentyMs), first.statuses.data());
  CHECK(first.all(Status::kOk));
  f.client.remove(f.handle, first.keys, Deadline::after_ms(kPlentyMs), first.statuses.data());
  CHECK(first.all(Status::kMiss));
  const auto lengths =
      f.client.fetch_lengths(f.handle, b.keys, 10000, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(lengths == std::vector<uint32_t>({0, 5000, 5000, 0}));
  std::vector<uint8_t> one(5000), two(5000);
  const std::vector<uint64_t> pointers = {0, reinterpret_cast<uint64_t>(one.data()),
                                          reinterpret_cast<uint64_t>(two.data()), 0};
  f.client.fetch(f.handle, b.keys, lengths, pointers, Deadline::after_ms(kPlentyMs), b.statuses.data());
  CHECK(b.statuses == std::vector<uint8_t>({1, 0, 0, static_cast<uint8_t>(Status::kTooLarge)}));
  CHECK(std::equal(one.begin(), one.end(), memory.begin() + 5000));
}

TEST_MAIN()
