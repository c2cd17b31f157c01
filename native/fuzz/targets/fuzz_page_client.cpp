// A whole client, whose masters and segments answer with any bytes: every call comes back in its time, every entry has a status, and
// what is called OK was sent.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>

#include "base/digest.hpp"
#include "builtin/builtin.hpp"
#include "client/client_test_peers.hpp"
#include "client/page_client.hpp"
#include "fuzz.hpp"

namespace kvstore::fuzz {
namespace {

using testing::FrameServer;
using testing::Request;
using wire::Op;
using wire::Status;

constexpr const char* kIdentity = "{\"model\":\"m\"}";
constexpr size_t kKeys = 2;
constexpr uint32_t kBytes = 60;
constexpr int64_t kDeadlineMs = 150;
constexpr int64_t kSlackMs = 20000;     // what a machine under load may take on top
constexpr uint16_t kPortHere = 0xBEEF;  // in an input: the port of the server that answers

void add(Bytes& to, const Bytes& bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

// An input is a list of answers: u16 size, u8 flags, frame. Each request that comes, on whatever connection, takes the next.
constexpr uint8_t kAsAsked = 1;  // op, request id and form are those of an answer to the request

struct Answer {
  uint8_t flags;
  Bytes frame;
};

class AnyServer {
 public:
  AnyServer(std::vector<Answer> answers)
      : answers_(std::move(answers)), server_([this](int fd) { serve(fd); }) {}
  uint16_t port() const { return server_.port(); }

 private:
  bool next(Answer* answer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (next_ == answers_.size()) return false;
    *answer = answers_[next_++];
    return true;
  }
  void serve(int fd) {
    Request request;
    Answer answer;
    while (testing::read_request(fd, &request)) {
      std::vector<uint8_t> payload(
          static_cast<size_t>(std::min<uint64_t>(request.header.payload_bytes, 1 << 20)));
      if (!testing::read_all(fd, payload.data(), payload.size()) || !next(&answer)) return;
      Bytes& frame = answer.frame;
      uint64_t announced = 0;
      if (frame.size() >= wire::kHeaderBytes) {
        wire::Header header;
        std::memcpy(&header.body_bytes, frame.data() + 12, 4);
        std::memcpy(&header.payload_bytes, frame.data() + 16, 8);
        header.op = request.header.op;
        header.request_id = request.header.request_id;
        header.flags = wire::kFlagReply;
        announced = wire::kHeaderBytes + header.body_bytes + header.payload_bytes;
        if ((answer.flags & kAsAsked) != 0) wire::encode_header(header, frame.data());
      }
      const uint16_t here = kPortHere, port = server_.port();
      const auto* const marker = reinterpret_cast<const uint8_t*>(&here);
      const auto at = std::search(frame.begin(), frame.end(), marker, marker + 2);
      if (at != frame.end()) std::memcpy(&*at, &port, 2);
      // Who announces more than comes would only be waited for.
      if (!testing::write_all(fd, frame.data(), frame.size()) || announced != frame.size()) return;
    }
  }

  const std::vector<Answer> answers_;
  std::mutex mutex_;
  size_t next_ = 0;
  FrameServer server_;
};

std::vector<Answer> answers_of(Input input) {
  std::vector<Answer> answers;
  while (input.left() > 0 && answers.size() < 64) {
    const size_t size = input.take<uint16_t>();
    const auto flags = input.take<uint8_t>();
    answers.push_back({flags, input.bytes(size)});
  }
  return answers;
}

class Script {
 public:
  Script& answer(const wire::Writer& fields, Status status = Status::kOk, const Bytes& payload = {}) {
    wire::Writer body;
    body.reply_prefix(status, "", 1).raw(fields.data(), fields.size());
    wire::Header header;
    header.body_bytes = static_cast<uint32_t>(body.size());
    header.payload_bytes = payload.size();
    Bytes frame(wire::kHeaderBytes);
    wire::encode_header(header, frame.data());
    frame.insert(frame.end(), body.data(), body.data() + body.size());
    add(frame, payload);
    const auto size = static_cast<uint16_t>(frame.size());
    bytes.push_back(static_cast<uint8_t>(size));
    bytes.push_back(static_cast<uint8_t>(size >> 8));
    bytes.push_back(kAsAsked);
    add(bytes, frame);
    return *this;
  }
  Script& hello() {
    wire::Writer f;
    f.u8(wire::kVersionMax).zeros(3).u32(wire::kKeysMax).u32(wire::kBodyBytesMax).u64(wire::kPayloadBytesMax);
    return answer(f.zeros(16).u32(4));
  }
  Script& open() {
    const NamespaceId ns = namespace_id(kIdentity, 1);
    return answer(wire::Writer().raw(ns.data(), ns.size()).u32(1).u32(0));
  }
  Script& map() {
    wire::Writer f;
    f.u32(1).u32(0).u32(0).u8(1).zeros(3).zeros(32).u64(1 << 20).u64(0);
    return answer(f.u16(9).u16(kPortHere).u16(0).u16(0).raw("127.0.0.1", 9));
  }
  Script& lookup(uint32_t replicas) {
    wire::Writer f;
    f.u32(kKeys).u32(replicas);
    for (size_t i = 0; i < kKeys; ++i) f.u32(0);
    for (size_t i = 0; i < kKeys * (replicas - 1); ++i) f.u32(wire::kNoSegment);
    for (size_t i = 0; i < kKeys; ++i) f.u32(kBytes);
    return answer(f);
  }
  Script& numbers(uint32_t value) {  // PLACE
    wire::Writer f;
    f.u32(kKeys).u32(0);
    for (size_t i = 0; i < kKeys; ++i) f.u32(value);
    return answer(f);
  }
  Script& statuses(uint8_t status) {
    wire::Writer f;
    f.u32(kKeys).u32(0);
    for (size_t i = 0; i < kKeys; ++i) f.u8(status);
    return answer(f.u64(5));
  }
  Script& pages() {
    wire::Writer f;
    f.u32(kKeys).u32(0);
    Bytes payload;
    for (size_t i = 0; i < kKeys; ++i) {
      const Bytes page(kBytes, static_cast<uint8_t>(i + 1));
      f.u8(0).u8(kDigestCrc32c).u16(0).u32(kBytes).u32(crc32c(0, page.data(), page.size())).u32(0);
      add(payload, page);
    }
    return answer(f, Status::kOk, payload);
  }
  Bytes bytes;
};

enum Verb : uint8_t { kExists, kGet, kPut, kRemove, kFetch, kVerbs };

void check_call(const Bytes& statuses, std::chrono::steady_clock::time_point since) {
  for (const uint8_t status : statuses) HOLDS(status <= static_cast<uint8_t>(Status::kWrongPeer));
  HOLDS(testing::elapsed_ms(since) <= kDeadlineMs + kSlackMs);
}

void call(PageClient& client, int handle, Verb verb, const Bytes& sent) {
  Bytes hashes(kKeys * kHashBytes, 3), memory(kKeys * kBytes, 0xEE), statuses(kKeys, 77);
  hashes[5] = 9;
  KeyBlock keys;
  keys.shard_count = 1;
  keys.key_count = kKeys;
  keys.shards = kWholeShard.data();
  keys.hashes = hashes.data();
  std::vector<uint64_t> pointers, sizes(kKeys, kBytes);
  for (size_t i = 0; i < kKeys; ++i)
    pointers.push_back(reinterpret_cast<uint64_t>(memory.data() + i * kBytes));
  const Pieces pieces = Pieces::from_pointers(pointers, sizes, 1);
  const auto since = std::chrono::steady_clock::now();
  const Deadline deadline = Deadline::after_ms(kDeadlineMs);
  switch (verb) {
    case kExists:
      client.exists(handle, keys, 1000, deadline, statuses.data());
      break;
    case kGet:
      client.get(handle, keys, pieces, deadline, statuses.data());
      break;
    case kPut:
      client.put(handle, keys, pieces, {}, deadline, statuses.data());
      break;
    case kRemove:
      client.remove(handle, keys, deadline, statuses.data());
      break;
    default: {
      const std::vector<uint32_t> lengths =
          client.fetch_lengths(handle, keys, 1 << 20, deadline, statuses.data());
      HOLDS(lengths.size() == kKeys && lengths[0] + uint64_t{lengths[1]} <= 1 << 20);
      std::vector<Bytes> fetched;
      std::vector<uint64_t> to;
      for (const uint32_t length : lengths) {
        fetched.emplace_back(length);
        to.push_back(reinterpret_cast<uint64_t>(fetched.back().data()));
      }
      client.fetch(handle, keys, lengths, to, deadline, statuses.data());
      break;
    }
  }
  check_call(statuses, since);
  if (verb != kGet) return;
  for (size_t i = 0; i < kKeys; ++i) {
    const auto page = memory.begin() + static_cast<std::ptrdiff_t>(i * kBytes);
    if (statuses[i] == 0) HOLDS(std::search(sent.begin(), sent.end(), page, page + kBytes) != sent.end());
  }
}

}  // namespace

std::vector<Seed> seeds() {
  const auto begun = [](Verb verb) {
    Script s;
    s.bytes = {verb};
    return s.hello().open();
  };
  std::vector<Seed> seeds;
  seeds.push_back({"exists", begun(kExists).lookup(1).map().hello().statuses(0).bytes});
  seeds.push_back({"exists_with_replicas", begun(kExists).lookup(4).map().hello().statuses(0).bytes});
  seeds.push_back({"get", begun(kGet).lookup(1).map().hello().pages().bytes});
  seeds.push_back({"get_map_first", begun(kGet).map().lookup(4).hello().pages().bytes});
  seeds.push_back({"put", begun(kPut).numbers(0).map().hello().statuses(0).statuses(0).bytes});
  seeds.push_back({"put_map_first", begun(kPut).map().numbers(0).hello().statuses(0).bytes});
  seeds.push_back({"put_there", begun(kPut).numbers(wire::kAlreadyThere).bytes});
  seeds.push_back({"remove", begun(kRemove).lookup(4).map().hello().statuses(0).bytes});
  seeds.push_back({"fetch", begun(kFetch).lookup(1).map().hello().pages().bytes});
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  Input input(data, size);
  const auto verb = static_cast<Verb>(input.take<uint8_t>() % kVerbs);
  Bytes sent(data, data + size);
  AnyServer server(answers_of(input));
  PageClientOptions options;
  options.transports = builtin_transports();
  options.transport_options["same_host"] = "false";
  PageClient client({{"127.0.0.1", server.port(), ""}}, options);
  const auto since = std::chrono::steady_clock::now();
  const auto [status, handle] = client.open_namespace(kIdentity, "m", Deadline::after_ms(kDeadlineMs));
  check_call({static_cast<uint8_t>(status)}, since);
  for (int i = 0; i < 2; ++i) call(client, handle, verb, sent);
  HOLDS(client.counters().value(Counter::kInternalErrors) == 0);
  client.close();
  return 0;
}

}  // namespace kvstore::fuzz
