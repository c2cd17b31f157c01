// PULL out of memory elsewhere: what is checked before the first byte is read, what becomes of bytes that are not the promised ones,
// and of slots whose reader failed. The memory is this process's own here; the reader over UCX is tested by tests/contract.
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "check.hpp"
#include "segment/data_port/put_transfer.hpp"
#include "segment/data_port_client.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Status;

namespace {

constexpr uint32_t kBuffer = 7;

class OwnMemory : public RemoteMemory {
 public:
  explicit OwnMemory(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}
  uint64_t usable_bytes(uint32_t buffer_id) const override {
    if (buffer_id != kBuffer) throw wire::WireError(Status::kBadRequest, "no such buffer");
    return bytes_.size();
  }
  void remove(uint32_t) override {}
  void read(uint32_t, const std::vector<Read>& reads, Clock::time_point) override {
    if (fails) throw ConnectionEnded("the writer is gone");
    for (const Read& r : reads) {
      CHECK(r.size > 0);
      std::memcpy(r.to, bytes_.data() + r.offset, r.size);
      ++reads_done;
    }
  }
  bool fails = false;
  size_t reads_done = 0;

 private:
  std::vector<uint8_t> bytes_;
};

struct Piece {
  uint64_t offset;
  uint32_t size;
};

// The body of a PULL of one object; views into it are what a session works with.
std::vector<uint8_t> pull_body(const std::string& name, const std::vector<Piece>& pieces, uint32_t digest,
                               uint32_t buffer_id = kBuffer) {
  uint32_t length = 0;
  for (const Piece& p : pieces) length += p.size;
  wire::Writer body = put_body(Keys({name}), {length});
  body.u32(buffer_id).u32(static_cast<uint32_t>(pieces.size()));
  for (const Piece& p : pieces) body.u64(p.offset);
  for (const Piece& p : pieces) body.u32(p.size);
  body.u32(digest);
  return body.buffer();
}

// Status of the request, or else of its one entry.
Status pull(SegmentStore& store, OwnMemory& memory, const std::vector<uint8_t>& body) {
  static const std::atomic<bool> kNeverCancelled{false};
  try {
    wire::Reader reader(body.data(), body.size());
    const PutRequest put = read_put_request(reader);
    const PullPieces pieces = read_pull_pieces(reader, put, true);
    PutBatch batch(store);
    PutTransfer transfer(store, put, kNeverCancelled, batch);
    transfer.pull(memory, pieces);
    transfer.seal();
    return static_cast<Status>(transfer.statuses()[0]);
  } catch (const wire::WireError& e) {
    return e.status;
  }
}

}  // namespace

TEST(pieces_are_gathered_into_the_slot_and_sealed_when_their_digest_is_the_promised_one) {
  SegmentStore store(small_store());
  const std::vector<uint8_t> bytes = content("whole", 9000);
  OwnMemory memory(bytes);
  std::vector<uint8_t> object(bytes.begin() + 5000, bytes.end());
  object.insert(object.end(), bytes.begin(), bytes.begin() + 3);
  const uint32_t digest = crc32c(0, object.data(), object.size());
  CHECK_EQ(pull(store, memory, pull_body("a", {{5000, 4000}, {9000, 0}, {0, 3}}, digest)), Status::kOk);
  CHECK_EQ(memory.reads_done, 2u);
  CHECK_EQ(pull(store, memory, pull_body("a", {{5000, 4000}, {9000, 0}, {0, 3}}, digest)), Status::kExists);
  CHECK_EQ(memory.reads_done, 2u);  // what is there is not read again
}

TEST(bytes_with_another_digest_are_not_sealed) {
  SegmentStore store(small_store());
  OwnMemory memory(content("whole", 9000));
  CHECK_EQ(pull(store, memory, pull_body("a", {{0, 9000}}, 0)), Status::kDigestMismatch);
  CHECK_EQ(store.stats().at("used_bytes"), uint64_t{0});
  CHECK_EQ(store.stats().at("digest_mismatches"), uint64_t{1});
}

TEST(what_lies_outside_a_buffer_is_refused_before_anything_is_read) {
  SegmentStore store(small_store());
  OwnMemory memory(content("whole", 8192));
  CHECK_EQ(pull(store, memory, pull_body("x", {{0, 100}, {8192, 1}}, 0)), Status::kBadRequest);
  CHECK_EQ(pull(store, memory, pull_body("x", {{8000, 193}}, 0)), Status::kBadRequest);
  CHECK_EQ(pull(store, memory, pull_body("x", {{UINT64_MAX, 1}}, 0)), Status::kBadRequest);
  CHECK_EQ(pull(store, memory, pull_body("x", {{UINT64_MAX - 5, 10}}, 0)), Status::kBadRequest);
  CHECK_EQ(pull(store, memory, pull_body("x", {{0, 1}}, 0, kBuffer + 1)), Status::kBadRequest);
  std::vector<uint8_t> no_digest = pull_body("x", {{0, 1}}, 0);
  no_digest.resize(no_digest.size() - 1);
  CHECK_EQ(pull(store, memory, no_digest), Status::kBadRequest);
  CHECK_EQ(memory.reads_done, 0u);
  CHECK_EQ(store.stats().at("used_bytes"), uint64_t{0});
}

TEST(a_reader_that_fails_gives_the_slots_back) {
  SegmentStore store(small_store());
  OwnMemory memory(content("whole", 8192));
  memory.fails = true;
  bool ended = false;
  try {
    pull(store, memory, pull_body("x", {{0, 8192}}, 0));
  } catch (const ConnectionEnded&) {
    ended = true;
  }
  CHECK(ended);
  CHECK_EQ(store.stats().at("used_bytes"), uint64_t{0});
  CHECK_EQ(get_one(store, "x"), Status::kMiss);
}

TEST_MAIN()
