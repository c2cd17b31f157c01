// Waiting for a socket keeps its companion going, and neither outstays the deadline nor misses what the socket has.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "check.hpp"
#include "client/connection/client_socket.hpp"
#include "segment/data_port/socket.hpp"

using namespace kvstore;

namespace {

// Has work whenever its descriptor is readable; passes `answer_after` pieces of it on to a socket as one byte.
class Worker : public SocketCompanion {
 public:
  explicit Worker(int answer_to = -1, int answer_after = 0)
      : answer_to_(answer_to), answer_after_(answer_after), fd_(::eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE)) {}
  ~Worker() override { ::close(fd_); }
  bool advance() override {
    uint64_t count = 0;
    if (::read(fd_, &count, sizeof(count)) != sizeof(count)) return true;
    if (++done == answer_after_) CHECK_EQ(::send(answer_to_, "x", 1, MSG_NOSIGNAL), ssize_t{1});
    return false;
  }
  int event_fd() const override { return fd_; }
  void add_work() const {
    const uint64_t one = 1;
    CHECK_EQ(::write(fd_, &one, sizeof(one)), ssize_t{sizeof(one)});
  }
  int done = 0;

 private:
  const int answer_to_, answer_after_, fd_;
};

struct Pair {
  Pair() { CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0); }
  int fds[2];
};

}  // namespace

TEST(a_client_gets_an_answer_that_its_own_companion_had_to_work_for) {
  Pair pair;
  ClientSocket socket(pair.fds[0]);
  Worker worker(pair.fds[1], 3);
  socket.set_companion(&worker);
  std::thread feeder([&] {
    for (int i = 0; i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      worker.add_work();
    }
  });
  uint8_t byte = 0;
  iovec into{&byte, 1};
  CHECK_EQ(socket.receive_all(&into, 1, Deadline::after_ms(10000)), NetStatus::kOk);
  feeder.join();
  CHECK_EQ(byte, uint8_t{'x'});
  CHECK(worker.done >= 3);
  ::close(pair.fds[1]);
}

TEST(a_companion_that_never_rests_does_not_keep_a_client_past_its_deadline) {
  class Restless : public Worker {
   public:
    bool advance() override {
      add_work();
      Worker::advance();
      return false;
    }
  } worker;
  Pair pair;
  ClientSocket socket(pair.fds[0]);
  socket.set_companion(&worker);
  uint8_t byte = 0;
  iovec into{&byte, 1};
  CHECK_EQ(socket.receive_all(&into, 1, Deadline::after_ms(30)), NetStatus::kTimeout);
  ::close(pair.fds[1]);
}

TEST(a_server_that_waits_for_requests_keeps_its_companion_going) {
  Pair pair;
  ServerSocket socket(pair.fds[0], true);
  Worker worker(pair.fds[1], 2);
  worker.add_work();
  std::thread feeder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    worker.add_work();
    worker.add_work();
  });
  CHECK(socket.wait_readable(ServerSocket::Clock::now() + std::chrono::seconds(10), &worker));
  feeder.join();
  CHECK(worker.done >= 2);
  ::close(pair.fds[1]);
}

TEST_MAIN()
