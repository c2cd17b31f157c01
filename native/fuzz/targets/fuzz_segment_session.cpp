// One connection of a segment's data port, from any bytes: it ends, gives back all that it held, and the store serves the next.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "fuzz.hpp"
#include "segment/data_port/session.hpp"
#include "segment/data_port_client.hpp"

namespace kvstore::fuzz {
namespace {

using namespace std::chrono_literals;
using testing::DataClient;
using testing::Keys;
using wire::Op;
using wire::Status;

// Of an input: what goes before its bytes.
constexpr uint8_t kUnix = 1;        // as if on the unix socket
constexpr uint8_t kGreets = 2;      // HELLO goes first
constexpr uint8_t kDescriptor = 4;  // a file that can be registered rides on the first byte
constexpr size_t kFileBytes = 16384;
constexpr auto kPatience =
    500ms;  // with a session that waits for space or a commit, before the segment is told to stop
constexpr unsigned kInputsOfStore = 50;

// A store whose journal is confirmed as it comes.
class ConfirmedStore {
 public:
  ConfirmedStore()
      : store_(std::make_shared<SegmentStore>(testing::small_store())), acker_([this] { confirm(); }) {}
  ~ConfirmedStore() {
    over_ = true;
    acker_.join();
    store_->close();
  }
  SegmentStore& operator*() { return *store_; }

 private:
  void confirm() {
    while (!over_) {
      pollfd p{store_->journal().fd(), POLLIN, 0};
      if (::poll(&p, 1, 5) <= 0) continue;
      while (const auto batch = store_->journal().drain(65536)) store_->journal().ack(batch->last_seq);
    }
  }
  std::shared_ptr<SegmentStore> store_;
  std::atomic<bool> over_{false};
  std::thread acker_;
};

int sealed_file() {
  static const int fd = [] {
    const int made = ::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    HOLDS(made >= 0 && ::ftruncate(made, kFileBytes) == 0 && ::fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return made;
  }();
  return fd;
}

void add(Bytes& to, const Bytes& bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

Bytes hello() {
  wire::Writer body;
  body.u8(wire::kVersionMin).u8(wire::kVersionMax).u8(1).u8(0).u16(0).u16(0).zeros(16);
  return DataClient::frame(Op::kHello, body);
}

// A PUT of a frame that has none.
Bytes with_intent(const Bytes& put, wire::Intent intent, uint32_t ttl_ms) {
  wire::Header header = wire::decode_header(put.data());
  const auto body_end = put.begin() + static_cast<ptrdiff_t>(wire::kHeaderBytes + header.body_bytes);
  Bytes body(put.begin() + static_cast<ptrdiff_t>(wire::kHeaderBytes), body_end);
  body[1] |= wire::kPutHasIntent;
  wire::Writer wish;
  wish.keep_wish({intent, ttl_ms});
  add(body, wish.buffer());
  header.body_bytes = static_cast<uint32_t>(body.size());
  Bytes frame(wire::kHeaderBytes);
  wire::encode_header(header, frame.data());
  add(frame, body);
  frame.insert(frame.end(), body_end, put.end());
  return frame;
}

// Says all of `bytes`, takes all answers, and waits for the end.
void converse(int fd, const Bytes& bytes, bool with_descriptor, SessionContext& context,
              ServerSession& session) {
  size_t said = 0;
  bool all_said = false;
  auto since = std::chrono::steady_clock::now();
  for (;;) {
    pollfd p{fd, static_cast<short>(POLLIN | (all_said ? 0 : POLLOUT)), 0};
    ::poll(&p, 1, 20);
    uint8_t answer[16384];
    ssize_t n = ::recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
    if (n > 0) since = std::chrono::steady_clock::now();
    if (!all_said && said == bytes.size()) {
      ::shutdown(fd, SHUT_WR);
      all_said = true;
    } else if (!all_said) {
      iovec part{const_cast<uint8_t*>(bytes.data()) + said, bytes.size() - said};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))] = {};
      if (with_descriptor && said == 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        const int file = sealed_file();
        std::memcpy(CMSG_DATA(c), &file, sizeof(int));
      }
      n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) said += static_cast<size_t>(n), since = std::chrono::steady_clock::now();
      if (n < 0 && errno != EAGAIN && errno != EINTR)
        all_said = true;  // it ends while we speak: what it answered still comes
    }
    if (std::chrono::steady_clock::now() - since > kPatience) {
      context.stopping.store(true);
      context.store.interrupt();
      session.shutdown();
    }
  }
}

}  // namespace

std::vector<Seed> seeds() {
  const Keys keys({"a", "b"}), one({"a"});
  const auto keyed = [&](Op op, uint32_t number, uint32_t id = 1) {
    return DataClient::frame(op, testing::two_numbers_and_keys(number, keys), {}, id);
  };
  wire::Writer suspect, remove, pull, registered, commit, number, retain, demote;
  testing::write_key_block(suspect, keys.block());
  remove.u8(1).zeros(3).u32(50);
  testing::write_key_block(remove, one.block());
  pull = testing::put_body(keys, {300, 200}, 1);
  pull.u32(1).u32(1).u64(0).u64(300).u32(300).u32(200);
  registered.u64(kFileBytes).u64(0);
  commit.u64(1).u32(100).u32(0);
  number.u32(1);
  retain.keep_wish({wire::Intent::kRetain, 60'000});
  testing::write_key_block(retain, keys.block());
  demote.keep_wish({wire::Intent::kDemote, 0});
  testing::write_key_block(demote, one.block());
  const Bytes put = testing::put_frame({"a", "b"}, 100, 0, 1);
  const std::vector<std::pair<std::string, Bytes>> frames{
      {"put", put},
      {"get", DataClient::frame(Op::kGet, testing::get_body(keys))},
      {"pin", keyed(Op::kPin, 1000)},
      {"locate", keyed(Op::kLocate, 1000, 1)},
      {"unpin", DataClient::frame(Op::kUnpin, number)},
      {"suspect", DataClient::frame(Op::kSuspect, suspect)},
      {"commit", DataClient::frame(Op::kCommit, commit)},
      {"attach", DataClient::frame(Op::kAttach, wire::Writer())},
      {"register", DataClient::frame(Op::kRegister, registered)},
      {"pull", DataClient::frame(Op::kPull, pull)},
      {"unregister", DataClient::frame(Op::kUnregister, number)},
      {"remove", DataClient::frame(Op::kRemove, remove)},
      {"retain", DataClient::frame(Op::kKeep, retain)},
      {"demote", DataClient::frame(Op::kKeep, demote)},
      {"put_retained", with_intent(put, wire::Intent::kRetain, 1)},
      {"damaged_put", testing::put_frame({"c", "d"}, 60, 1, 0)}};
  std::vector<Seed> seeds;
  Bytes tcp{kGreets}, local{kUnix | kGreets | kDescriptor}, greeting{0};
  add(greeting, hello());
  add(greeting, put);
  for (const auto& [name, frame] : frames) {
    add(tcp, frame);
    add(local, frame);
    Bytes two{static_cast<uint8_t>(kUnix | kGreets | kDescriptor)};
    add(two, put);
    add(two, frame);
    seeds.push_back({"put_and_" + name, two});
  }
  seeds.push_back({"all_by_tcp", tcp});
  seeds.push_back({"all_by_unix", local});
  seeds.push_back({"a_greeting", greeting});
  Bytes pulls{kUnix | kGreets | kDescriptor};
  for (const char* name : {"register", "pull", "get", "unregister", "pull"})
    for (const auto& [frame_name, frame] : frames)
      if (frame_name == name) add(pulls, frame);
  seeds.push_back({"pulls", pulls});
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  static std::unique_ptr<ConfirmedStore> store;
  static unsigned inputs = 0;
  if (inputs++ % kInputsOfStore == 0) store = std::make_unique<ConfirmedStore>();
  Input input(data, size);
  const uint8_t flags = input.take<uint8_t>();
  Bytes bytes;
  if ((flags & kGreets) != 0) add(bytes, hello());
  add(bytes, input.rest());

  SegmentStore& segment = **store;
  SessionContext context{segment, {}, 60s};
  context.connections_max = 2;
  int ends[2];
  HOLDS(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  {
    ServerSession session(context, ends[0], (flags & kUnix) != 0);
    std::thread served([&] {
      session.run();
      session.shutdown();
    });
    converse(ends[1], bytes, (flags & kUnix) != 0 && (flags & kDescriptor) != 0, context, session);
    session.shutdown();  // whatever it still waits for
    context.stopping.store(true);
    segment.interrupt();
    served.join();
  }
  ::close(ends[1]);
  HOLDS(context.counters.internal_errors == 0 && context.greeted == 0);
  const Budgets& budgets = segment.budgets();
  for (const Budget* budget : {&budgets.writing_bytes, &budgets.held_bytes, &budgets.registered_bytes,
                               &budgets.registered_buffers, &budgets.body_bytes})
    HOLDS(budget->used() == 0);
  HOLDS(segment.usage().used_bytes <= segment.options().capacity_bytes);
  // Whatever it was about, there is room for what comes next, but for what is pinned.
  const Status put = testing::put_one(segment, "next", 3000, {9}, 10000);
  HOLDS(put == Status::kOk || put == Status::kExists);
  HOLDS(testing::get_one(segment, "next", {9}) == Status::kOk);
  while (segment.evict_bytes(UINT64_MAX) > 0) {
  }
  const std::map<std::string, uint64_t> stats = segment.stats();
  HOLDS(stats.at("bookkeeping_errors") == 0 && stats.at("evictor_errors") == 0 &&
        stats.at("damaged_slots") == 0);
  const SegmentStore::Usage left = segment.usage();
  if (left.pinned_bytes == 0 && left.quarantined_slots == 0)
    HOLDS(left.used_bytes == 0 && left.object_count == 0);
  return 0;
}

}  // namespace kvstore::fuzz
