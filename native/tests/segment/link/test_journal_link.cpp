// A link over real sockets: how it begins, how it ends, and that it always ends in time.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "segment/link/journal_link.hpp"
#include "segment/link/link_master.hpp"
#include "segment/object_fixture.hpp"
#include "segment/store_journal_source.hpp"

using namespace kvstore;
using namespace kvstore::testing;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using wire::Op;

namespace {

constexpr auto kPatience = std::chrono::seconds(20);

// Listens on loopback; `behave` runs on a thread of its own with each connection that is accepted, one after the other.
class Master {
 public:
  using Behaviour = std::function<void(Master&, int fd)>;
  explicit Master(Behaviour behave, int receive_buffer_bytes = 0) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer_bytes > 0)
      ::setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    ::listen(listener_, 4);
    socklen_t size = sizeof(address);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
    thread_ = std::thread([this, behave] {
      for (;;) {
        const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) return;
        behave(*this, fd);
        ::close(fd);
      }
    });
  }
  ~Master() {
    over = true;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  static void send(int fd, const std::vector<uint8_t>& bytes) {
    [[maybe_unused]] const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Hands each frame to `take` until the peer is gone, or that returns false.
  void serve(int fd, const std::function<bool(const Frame&)>& take) {
    std::vector<uint8_t> bytes, piece(1 << 16);
    while (!over) {
      pollfd item{fd, POLLIN, 0};
      if (::poll(&item, 1, 10) <= 0) continue;
      const ssize_t n = ::recv(fd, piece.data(), piece.size(), 0);
      if (n <= 0) return;
      bytes.insert(bytes.end(), piece.begin(), piece.begin() + n);
      for (const Frame& frame : take_frames(bytes))
        if (!take(frame)) return;
    }
  }
  void hang() {
    while (!over) std::this_thread::sleep_for(milliseconds(1));
  }

  uint16_t port = 0;
  std::atomic<bool> over{false};

 private:
  int listener_;
  std::thread thread_;
};

// As a master should.
bool behave_well(int fd, const Frame& frame, uint64_t& taken) {
  if (frame.is(Op::kJournal)) {
    wire::Reader body = frame.reader();
    body.u64("first");
    Master::send(fd, ack(body.u64("last"), ++taken));
  } else if (frame.is(Op::kInventory)) {
    const bool last = (frame.body[12] & kInventoryLast) != 0;
    Master::send(fd, ack(last ? frame.reader().u64("seq") : 0, ++taken));
  } else {
    Master::send(fd, answer(frame));
  }
  return true;
}

struct Segment {
  explicit Segment(uint16_t port, bool need_inventory = false, int silence_ms = 4000, int objects = 0)
      : store(make_process_owned<SegmentStore>(small_store(64 << 20))),
        source(store),
        pump(new JournalPump(source)) {
    for (int i = 0; i < objects; ++i) put_one(*store, "k" + std::to_string(i), 100);
    JournalLinkOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.link.name = "test";
    options.link.cluster_id = kCluster;
    options.link.link_token = kLinkToken;
    options.link.need_inventory = need_inventory;
    options.link.heartbeat_interval = milliseconds(20);
    options.link.silence_timeout = milliseconds(silence_ms);
    options.stall_timeout = milliseconds(silence_ms);
    link = make_process_owned<JournalLink>(store, pump, options);
  }
  template <typename Condition>
  bool until(Condition condition) {
    const auto end = steady_clock::now() + kPatience;
    while (!condition()) {
      if (steady_clock::now() >= end) return false;
      pollfd item{link->event_fd(), POLLIN, 0};
      ::poll(&item, 1, 5);
      link->events_seen();
    }
    return true;
  }
  std::string kind_of_end() {
    return until([&] { return link->ended().has_value(); }) ? link->ended()->kind : "none";
  }
  bool linked() {
    return until([&] { return link->linked(); });
  }

  std::shared_ptr<SegmentStore> store;
  StoreJournalSource source;
  std::shared_ptr<JournalPump> pump;
  std::shared_ptr<JournalLink> link;
};

milliseconds time_to_stop(Segment& segment) {
  const auto began = steady_clock::now();
  segment.link->stop();
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - began);
}

}  // namespace

TEST(a_put_that_waits_is_confirmed_by_the_link_and_heartbeats_go_on) {
  Master master([](Master& m, int fd) {
    uint64_t taken = 0;
    m.serve(fd, [&](const Frame& frame) { return behave_well(fd, frame, taken); });
  });
  Segment segment(master.port);
  CHECK(segment.linked());
  for (int i = 0; i < 20; ++i) {
    CHECK_EQ(put_one(*segment.store, "put " + std::to_string(i), 100), wire::Status::kOk);
    CHECK(segment.store->journal().wait_acked(segment.store->journal().last_seq(),
                                              steady_clock::now() + kPatience, kNever));
  }
  CHECK(segment.until([&] { return segment.link->heartbeats_sent() >= 5; }));
  CHECK(!segment.link->ended());
  segment.link->stop();
  CHECK_EQ(segment.link->ended()->kind, std::string("stopped"));
  CHECK_EQ(segment.pump->state(), JournalPump::State::kDetached);
}

TEST(a_large_inventory_goes_through_with_heartbeats_between_its_parts) {
  std::atomic<int> beats_between{0};
  Master master([&](Master& m, int fd) {
    uint64_t taken = 0;
    bool in_inventory = false;
    m.serve(fd, [&](const Frame& frame) {
      if (frame.is(Op::kInventory)) {
        in_inventory = (frame.body[12] & kInventoryLast) == 0;
        std::this_thread::sleep_for(milliseconds(30));  // a master whose store is slow
      }
      if (frame.is(Op::kHeartbeat) && in_inventory) ++beats_between;
      return behave_well(fd, frame, taken);
    });
  });
  Segment segment(master.port, true, 4000, 0);
  CHECK(segment.linked());
  for (int i = 0; i < 3000; ++i) put_one(*segment.store, "k" + std::to_string(i), 100);
  CHECK(segment.until(
      [&] { return segment.store->journal().acked_seq() == segment.store->journal().last_seq(); }));
  segment.link->stop();
  // Now in parts: a pump of small ones.
  segment.pump = std::make_shared<JournalPump>(segment.source, 100);
  JournalLinkOptions options;
  options.host = "127.0.0.1";
  options.port = master.port;
  options.link.cluster_id = kCluster;
  options.link.link_token = kLinkToken;
  options.link.need_inventory = true;
  options.link.heartbeat_interval = milliseconds(20);
  segment.link = make_process_owned<JournalLink>(segment.store, segment.pump, options);
  CHECK(segment.until([&] { return segment.pump->durable_seq() == segment.store->journal().last_seq(); }));
  CHECK(beats_between.load() >= 2);
}

TEST(where_nothing_listens_the_link_ends_and_says_so) {
  uint16_t port;
  {
    Master gone([](Master&, int) {});
    port = gone.port;
  }
  Segment segment(port);
  CHECK_EQ(segment.kind_of_end(), std::string("unreachable"));
  CHECK(segment.link->ended()->text.find(std::to_string(port)) != std::string::npos);
}

TEST(a_master_that_closes_or_only_half_closes_ends_the_link) {
  for (const bool half : {false, true}) {
    Master master([half](Master& m, int fd) {
      uint64_t taken = 0;
      m.serve(fd,
              [&](const Frame& frame) { return !frame.is(Op::kHeartbeat) && behave_well(fd, frame, taken); });
      if (half) {
        ::shutdown(fd, SHUT_WR);
        m.hang();
      }
    });
    Segment segment(master.port);
    CHECK_EQ(segment.kind_of_end(), std::string("lost"));
  }
}

TEST(a_master_that_takes_the_connection_and_never_answers_is_left) {
  Master master([](Master& m, int) { m.hang(); });
  Segment segment(master.port, false, 200);
  CHECK_EQ(segment.kind_of_end(), std::string("silent"));
  CHECK(!segment.link->linked());
}

TEST(a_master_that_falls_silent_is_left_though_it_reads_all_that_comes) {
  Master master([](Master& m, int fd) {
    m.serve(fd, [&](const Frame& frame) {
      if (!frame.is(Op::kHeartbeat)) Master::send(fd, answer(frame));
      return true;
    });
  });
  Segment segment(master.port, false, 200);
  CHECK_EQ(segment.kind_of_end(), std::string("silent"));
  CHECK(segment.link->linked());
}

TEST(a_master_that_reads_nothing_more_is_left) {
  Master master(
      [](Master& m, int fd) {
        int greeted = 0;
        m.serve(fd, [&](const Frame& frame) {
          Master::send(fd, answer(frame));
          return ++greeted < 2;
        });
        m.hang();
      },
      4096);
  Segment segment(master.port, true, 300, 5000);
  const std::string kind = segment.kind_of_end();
  CHECK(kind == "silent" || kind == "stalled");
}

TEST(nonsense_from_a_master_ends_the_link) {
  Master master([](Master& m, int fd) {
    int greeted = 0;
    m.serve(fd, [&](const Frame& frame) {
      Master::send(fd, answer(frame));
      return ++greeted < 2;
    });
    Master::send(fd, ack(1000, 0));
    m.hang();
  });
  Segment segment(master.port);
  CHECK_EQ(segment.kind_of_end(), std::string("protocol"));
  CHECK_EQ(segment.store->journal().acked_seq(), uint64_t{0});
}

// A tenth of a second where the machine is idle; what is checked is that it waits for none of its deadlines.
TEST(a_link_is_stopped_at_once_whatever_it_does) {
  {  // waiting for the first answer
    Master master([](Master& m, int) { m.hang(); });
    Segment segment(master.port);
    std::this_thread::sleep_for(milliseconds(20));
    CHECK(time_to_stop(segment) < milliseconds(1000));
  }
  {  // sending to a master that reads nothing
    Master master(
        [](Master& m, int fd) {
          int greeted = 0;
          m.serve(fd, [&](const Frame& frame) {
            Master::send(fd, answer(frame));
            return ++greeted < 2;
          });
          m.hang();
        },
        4096);
    Segment segment(master.port, true, 4000, 5000);
    CHECK(segment.linked());
    std::this_thread::sleep_for(milliseconds(20));
    CHECK(time_to_stop(segment) < milliseconds(1000));
  }
  {  // connecting to where nobody answers: a backlog that is full
    Master master([](Master& m, int) { m.hang(); });
    std::vector<std::unique_ptr<Segment>> crowd;
    for (int i = 0; i < 12; ++i) crowd.push_back(std::make_unique<Segment>(master.port));
    std::this_thread::sleep_for(milliseconds(50));
    for (auto& segment : crowd) CHECK(time_to_stop(*segment) < milliseconds(1000));
  }
}

TEST(a_forked_child_leaves_the_link_to_its_parent) {
  Master master([](Master& m, int fd) {
    uint64_t taken = 0;
    m.serve(fd, [&](const Frame& frame) { return behave_well(fd, frame, taken); });
  });
  Segment segment(master.port);
  CHECK(segment.linked());
  const pid_t child = ::fork();
  if (child == 0) {
    segment.link->stop();
    segment.link.reset();
    ::_exit(0);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  const uint64_t beats = segment.link->heartbeats_sent();
  CHECK(segment.until([&] { return segment.link->heartbeats_sent() > beats + 2; }));
  CHECK(!segment.link->ended());
}

TEST_MAIN()
