// What an exists promises.
#include "client/page_client_fixture.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

TEST(what_the_directory_promises_and_the_segment_does_not_have_is_a_miss) {
  Fixture f;
  std::vector<uint8_t> memory(4 * 5000);
  TestSegment segment(f.directory, 0, 1);
  f.open();
  Batch b(4, 1, 5000, 1, 6, memory.data());
  b.keys.ns = f.client.namespace_state(f.handle).ns;
  wire::Writer group;
  const auto fps = b.keys.fingerprints();
  group.u8(1).zeros(3).u32(4).raw(b.keys.ns.data(), 8).raw(fps.data(), 4 * kFingerprintBytes);
  for (int i = 0; i < 4; ++i) group.u32(5000);
  f.directory.index().apply(0, group.data(), group.size());
  f.exists(b, 1000);
  CHECK(b.all(Status::kMiss));
  f.exists(b, 1000);  // the segment is known by now, and asked beside the directory
  CHECK(b.all(Status::kMiss));
  f.get(b);
  CHECK(b.all(Status::kMiss));
  f.exists(b, 0);
  CHECK(b.all(Status::kOk));  // without a pin only the directory is asked
}

TEST_MAIN()
