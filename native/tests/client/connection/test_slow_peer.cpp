// A call that may not stall, to a segment that is slow, and to one that hangs.
#include <poll.h>

#include "base/digest.hpp"
#include "client/scripted_segment.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Op;
using wire::Status;

namespace {

constexpr int64_t kStallMs = 400;
constexpr size_t kBytes = 64000;

int64_t elapsed_ms(Deadline::Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - start).count();
}

// Sends the object in parts, with a pause before each; `parts_max`: and hangs after so many.
ScriptedSegment::Script in_parts(int parts, int pause_ms, int parts_max) {
  return [=](int fd, const Request& request) {
    if (request.op() != Op::kGet) return;
    const std::vector<uint8_t> bytes(kBytes, 7);
    const auto frame = ok_get_reply(request, bytes, crc32c(0, bytes.data(), bytes.size()));
    const size_t step = frame.size() / static_cast<size_t>(parts) + 1;
    for (int part = 0; part < std::min(parts, parts_max); ++part) {
      ::poll(nullptr, 0, pause_ms);
      const size_t at = static_cast<size_t>(part) * step;
      if (!write_all(fd, frame.data() + at, std::min(step, frame.size() - at))) return;
    }
  };
}

struct Rig {
  Rig(int parts, int pause_ms, int parts_max)
      : fixture(slow_back_off()), memory(kBytes), batch(1, 1, kBytes, 1, 31, memory.data()) {
    fixture.open();
    segment = std::make_unique<ScriptedSegment>(fixture, batch, in_parts(parts, pause_ms, parts_max));
  }
  // Milliseconds that it took.
  int64_t get(int64_t ms) {
    const auto start = Deadline::Clock::now();
    Progress progress(kStallMs);
    fixture.client.get(fixture.handle, batch.keys, *batch.pieces,
                       Deadline::after_ms(ms).while_moving(progress), batch.statuses.data());
    return elapsed_ms(start);
  }
  Fixture fixture;
  std::vector<uint8_t> memory;
  Batch batch;
  std::unique_ptr<ScriptedSegment> segment;
};

}  // namespace

TEST(what_comes_in_parts_may_take_longer_than_it_may_stall) {
  Rig r(8, 120, 8);
  const int64_t took_ms = r.get(kPlentyMs);
  CHECK(took_ms > kStallMs);
  CHECK(r.batch.all(Status::kOk));
}

TEST(what_stops_coming_ends_the_call_however_much_time_is_left) {
  Rig r(8, 50, 3);
  const int64_t took_ms = r.get(30000);
  CHECK(took_ms >= kStallMs);
  CHECK(took_ms < 3 * 50 + kStallMs + 1000);
  CHECK(r.batch.all(Status::kTimeout));
  CHECK_EQ(r.fixture.count(Counter::kBreakerOpen), 1u);
}

TEST(a_segment_that_was_cut_off_while_it_sent_is_not_taken_for_one_that_hangs) {
  Rig r(60, 30, 60);
  CHECK(r.get(600) < 600 + 1000);
  CHECK(r.batch.all(Status::kTimeout));
  CHECK_EQ(r.fixture.count(Counter::kBreakerOpen), 0u);
  CHECK(r.fixture.client.counters().troubles.none());
}

TEST_MAIN()
