// A call ends before its deadline when it is cancelled, and nothing of it is left.
#include <atomic>
#include <chrono>
#include <thread>

#include "base/cancellation.hpp"
#include "base/worker_pool.hpp"
#include "check.hpp"
#include "client/page_client_fixture.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using wire::Status;

using Clock = std::chrono::steady_clock;
// Slices of 50 ms, and a busy machine.
constexpr int64_t kSoonMs = 400;

// Has something else to do after the `looks`th look.
class Impatient : public Cancellation {
 public:
  explicit Impatient(int looks) : Cancellation(true), left_(looks) {}
  int looks = 0;

 private:
  bool look() noexcept override {
    ++looks;
    return --left_ <= 0;
  }
  int left_;
};

static int64_t ms_since(Clock::time_point began) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began).count();
}

// A put that hangs: its segment waits for a directory that does not confirm.
struct HungPut {
  HungPut()
      : fixture(tcp_only()),
        segment(fixture.directory, 0, 1),
        memory(kBytes),
        batch(1, 1, kBytes, 1, 5, memory.data()) {
    fixture.open();
    segment.hold_commits(true);
  }
  static constexpr size_t kBytes = 1 << 20;
  void put(const Deadline& deadline) {
    fixture.client.put(fixture.handle, batch.keys, *batch.pieces, {}, deadline, batch.statuses.data());
  }
  Fixture fixture;
  TestSegment segment;
  std::vector<uint8_t> memory;
  Batch batch;
};

TEST(the_thread_that_calls_looks_now_and_then_and_ends_its_call) {
  HungPut h;
  const auto began = Clock::now();
  {
    Impatient call(2);
    h.put(Deadline::after_ms(30000).of(call));
    CHECK_EQ(call.looks, 2);
    CHECK(call.is_cancelled());
  }
  CHECK(ms_since(began) >= 90 && ms_since(began) < kSoonMs);
  CHECK(h.batch.all(Status::kTimeout));
  CHECK(Cancellation::current() == nullptr);
}

TEST(a_cancelled_call_says_nothing_about_the_peer) {
  HungPut h;
  for (int i = 0; i < 4; ++i) {
    Impatient call(2);
    h.put(Deadline::after_ms(30000).of(call));
  }
  CHECK_EQ(h.fixture.count(Counter::kBreakerOpen), uint64_t{0});
  h.segment.hold_commits(false);
  h.put(Deadline::after_ms(kPlentyMs));
  CHECK(h.batch.all(Status::kOk) || h.batch.all(Status::kExists));
}

TEST(helpers_end_when_the_calling_thread_finds_a_reason) {
  WorkerPool workers(4);
  std::atomic<int> ended{0};
  Impatient call(1);
  const Deadline deadline = Deadline::after_ms(30000).of(call);
  const auto began = Clock::now();
  std::atomic<bool> helped{false};
  workers.run(3, [&](size_t) {
    if (Cancellation::current() == nullptr) {
      helped = true;
      while (!deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {  // the calling thread's part is done once somebody helps: it waits for the others
      while (!helped && ms_since(began) < 5000) std::this_thread::yield();
    }
    ++ended;
  });
  CHECK_EQ(ended.load(), 3);
  CHECK(helped && deadline.cancelled());
  CHECK(ms_since(began) < 5000);
}

TEST(a_call_within_a_call_looks_for_itself) {
  Impatient outer(1);
  {
    Impatient inner(1);
    CHECK(Cancellation::current() == &inner);
  }
  CHECK(Cancellation::current() == &outer);
  std::thread([] { CHECK(Cancellation::current() == nullptr); }).join();
}

// Closes the client in the middle of its call, as a signal handler may.
class Closes : public Cancellation {
 public:
  explicit Closes(PageClient& client) : Cancellation(true), client_(client) {}

 private:
  bool look() noexcept override {
    client_.close();
    return false;
  }
  PageClient& client_;
};

TEST(a_call_in_whose_middle_its_client_is_closed_ends_and_takes_it_down) {
  HungPut h;
  const auto began = Clock::now();
  {
    Closes call(h.fixture.client);
    h.put(Deadline::after_ms(30000).of(call));
    CHECK(call.is_cancelled());
  }
  CHECK(ms_since(began) < kSoonMs);
  CHECK(h.batch.all(Status::kTimeout));
  h.put(Deadline::after_ms(kPlentyMs));
  CHECK(h.batch.all(Status::kUnavailable));
  h.fixture.client.close();
}

TEST(closing_another_client_in_the_middle_of_a_call_leaves_the_call_alone) {
  HungPut h;
  Fixture other;
  Closes call(other.client);
  const auto began = Clock::now();
  h.put(Deadline::after_ms(200).of(call));
  CHECK(!call.is_cancelled());
  CHECK(ms_since(began) >= 100);  // its time, less what the reply takes
}

// Last: there is no way back.
TEST(the_exit_of_the_process_ends_the_calls_of_other_threads_and_no_others) {
  HungPut h;
  std::atomic<bool> in_call{false};
  std::thread other([&] {
    Impatient call(1 << 30);
    in_call = true;
    h.put(Deadline::after_ms(30000).of(call));
    CHECK(h.batch.all(Status::kTimeout));
  });
  while (!in_call) std::this_thread::yield();
  const auto began = Clock::now();
  CHECK(Cancellation::end_other_threads_calls(std::chrono::seconds(5)));
  CHECK(ms_since(began) < kSoonMs);
  other.join();
  std::thread([&] {
    Impatient late(1 << 30);
    CHECK(Deadline::after_ms(30000).of(late).expired());
  }).join();
  Impatient own(1 << 30);
  CHECK(!Deadline::after_ms(30000).of(own).expired());
}

TEST_MAIN()
