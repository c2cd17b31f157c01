// One commit a batch, whatever the number of connections it goes over.
#include <mutex>

#include "client/scripted_segment.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

constexpr size_t kKeys = 32;
constexpr size_t kBytes = 40000;  // a batch is large enough for two connections

// Stores nothing, numbers its PUTs in the order in which they come, and notes what was asked of it.
struct CountingSegment {
  CountingSegment(Fixture& f, uint32_t features, Status commit_answer = Status::kOk)
      : commit_answer_(commit_answer),
        segment_(f.directory, 0, [this](int fd, const Request& r) { answer(fd, r); }, features) {}

  int acks_asked = 0;
  uint64_t seq_given = 0;
  std::vector<uint64_t> committed;
  std::set<int> connections;
  std::mutex mutex;
  const Status commit_answer_;
  ScriptedSegment segment_;

 private:
  void answer(int fd, const Request& request) {
    wire::Reader body = request.reader();
    if (request.op() == Op::kCommit) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        committed.push_back(body.u64("journal_seq"));
      }
      send_reply(fd, request, commit_answer_, wire::Writer());
      return;
    }
    skip_payload(fd, request);
    wire::Writer fields;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      connections.insert(fd);
      acks_asked += body.u8("ack");
      body.bytes(7, "put head");
      const uint32_t count = read_key_block(body).entry_count();
      seq_given += count;
      fields.u32(count).u32(0).zeros(count).u64(seq_given);
    }
    send_reply(fd, request, Status::kOk, fields);
  }
};

PageClientOptions two_connections() {
  PageClientOptions options = tcp_only();
  options.run_bytes = 256u << 10;
  return options;
}

}  // namespace

TEST(a_batch_over_two_connections_is_committed_once_by_the_highest_number_of_its_replies) {
  Fixture f(two_connections());
  CountingSegment segment(f, wire::kFeatureCommit);
  f.open();
  std::vector<uint8_t> memory(kKeys * kBytes);
  Batch b(kKeys, 1, kBytes, 1, 1, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  CHECK_EQ(segment.connections.size(), 2u);
  CHECK_EQ(segment.acks_asked, 0);
  CHECK(segment.committed == std::vector<uint64_t>{kKeys});
}

TEST(a_batch_over_one_connection_needs_no_commit_of_its_own) {
  Fixture f(two_connections());
  CountingSegment segment(f, wire::kFeatureCommit);
  f.open();
  std::vector<uint8_t> memory(4 * kBytes);
  Batch b(4, 1, kBytes, 1, 2, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  CHECK_EQ(segment.acks_asked, 1);
  CHECK(segment.committed.empty());
}

TEST(a_segment_that_has_no_commit_is_asked_on_each_connection) {
  Fixture f(two_connections());
  CountingSegment segment(f, 0);
  f.open();
  std::vector<uint8_t> memory(kKeys * kBytes);
  Batch b(kKeys, 1, kBytes, 1, 3, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  CHECK_EQ(segment.connections.size(), 2u);
  CHECK_EQ(segment.acks_asked, 2);
  CHECK(segment.committed.empty());
}

TEST(nothing_of_a_batch_is_acked_when_its_commit_is_not_confirmed) {
  Fixture f(two_connections());
  CountingSegment segment(f, wire::kFeatureCommit, Status::kNotCommitted);
  f.open();
  std::vector<uint8_t> memory(kKeys * kBytes);
  Batch b(kKeys, 1, kBytes, 1, 4, memory.data());
  f.put(b);
  CHECK(b.all(Status::kNotCommitted));
}

TEST(a_batch_over_two_connections_is_in_the_directory_when_a_real_segment_has_acked_it) {
  Fixture f(two_connections());
  TestSegment segment(f.directory, 0, 1);
  f.open();
  std::vector<uint8_t> memory(kKeys * kBytes);
  fill(memory.data(), memory.size(), 5);
  Batch b(kKeys, 1, kBytes, 1, 5, memory.data());
  f.put(b);
  CHECK(b.all(Status::kOk));
  f.exists(b, 0);
  CHECK(b.all(Status::kOk));

  segment.hold_commits(true);
  Batch held(kKeys, 1, kBytes, 1, 6, memory.data());
  f.put(held, 300);
  CHECK(held.all(Status::kNotCommitted));
  segment.hold_commits(false);
}

TEST_MAIN()
