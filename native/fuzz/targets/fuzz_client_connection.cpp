// A client's side of one connection, answered with any bytes: every entry gets its status, and what is called OK are bytes that came,
// with their digest, in the memory of that entry and nowhere else.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/digest.hpp"
#include "client/connection/get_stripe.hpp"
#include "client/connection/put_stripe.hpp"
#include "fuzz.hpp"

namespace kvstore::fuzz {
namespace {

using wire::Op;
using wire::Status;

constexpr size_t kKeys = 3, kShards = 2;
constexpr uint32_t kLengths[kKeys * kShards] = {40, 1, 700, 64, 33, 90};
enum Exchange : uint8_t { kGet, kPut, kCommit, kLookup, kExchanges };

// A call for a few pages, in memory that is exactly theirs.
struct Call {
  Call() : hashes(kKeys * kHashBytes), statuses(kKeys * kShards, 77) {
    for (size_t i = 0; i < hashes.size(); ++i) hashes[i] = static_cast<uint8_t>(i * 11);
    for (size_t s = 0; s < kShards; ++s) shards.insert(shards.end(), kWholeShard.begin(), kWholeShard.end());
    shards[0] = 1;
    keys.key_count = kKeys;
    keys.shard_count = kShards;
    keys.shards = shards.data();
    keys.hashes = hashes.data();
    std::vector<uint64_t> pointers, sizes;
    for (const uint32_t length : kLengths) {
      memory.push_back(std::make_unique<uint8_t[]>(length));
      std::memset(memory.back().get(), 0xEE, length);
      pointers.push_back(reinterpret_cast<uint64_t>(memory.back().get()));
      sizes.push_back(length);
      batch.entries.push_back(static_cast<uint32_t>(batch.entries.size()));
    }
    pieces = std::make_unique<Pieces>(Pieces::from_pointers(pointers, sizes, 1));
    batch.keys = &keys;
    batch.statuses = statuses.data();
    batch.memory = pieces.get();
    blocks = make_blocks(batch.entries, kShards);
    runs = cut_stripes(blocks, kShards, 1, {1000, 4}, [](uint32_t entry) { return kLengths[entry]; }).front();
  }
  std::vector<uint8_t> hashes, shards, statuses;
  std::vector<std::unique_ptr<uint8_t[]>> memory;
  KeyBlock keys;
  std::unique_ptr<Pieces> pieces;
  TransportBatch batch;
  std::vector<EntryBlock> blocks;
  std::vector<EntryRun> runs;
};

void add_reply(Bytes& to, Op op, uint32_t id, Status status, const wire::Writer& fields,
               const Bytes& payload = {}) {
  wire::Writer body;
  body.reply_prefix(status, "", 3).raw(fields.data(), fields.size());
  wire::Header header;
  header.op = static_cast<uint8_t>(op);
  header.flags = wire::kFlagReply;
  header.request_id = id;
  header.body_bytes = static_cast<uint32_t>(body.size());
  header.payload_bytes = payload.size();
  uint8_t encoded[wire::kHeaderBytes];
  wire::encode_header(header, encoded);
  to.insert(to.end(), encoded, encoded + sizeof(encoded));
  to.insert(to.end(), body.data(), body.data() + body.size());
  to.insert(to.end(), payload.begin(), payload.end());
}

void add_hello(Bytes& to) {
  wire::Writer fields;
  fields.u8(wire::kVersionMax)
      .zeros(3)
      .u32(wire::kKeysMax)
      .u32(wire::kBodyBytesMax)
      .u64(wire::kPayloadBytesMax);
  add_reply(to, Op::kHello, 1, Status::kOk, fields.zeros(16).u32(4));
}

void exchange(Exchange what, FrameConnection& connection, Call& call, ClientCounters& counters) {
  const Deadline deadline = Deadline::after_ms(20000);
  Count moved;
  if (what == kGet) {
    GetStripe(connection, call.runs, call.batch, deadline, counters, moved).run();
  } else if (what == kPut) {
    SocketRunSender sender(call.batch, moved);
    CoveringCommit commit(call.batch, call.runs.size(), true);
    put_stripe(connection, call.runs, call.batch, deadline, sender, commit, counters);
    bool durable = false;
    if (commit.journal_seq() > 0) commit_journal(connection, commit.journal_seq(), deadline, &durable);
    if (durable) commit.covered();
  } else if (what == kCommit) {
    bool durable = false;
    const NetStatus status = commit_journal(connection, 9, deadline, &durable);
    HOLDS(!durable || status == NetStatus::kOk);
  } else {
    uint32_t id = 0;
    FrameReply reply;
    const wire::Writer body;
    if (connection.send_request(Op::kLookup, body.data(), 0, 0, deadline, &id) != NetStatus::kOk) return;
    if (connection.receive_reply(Op::kLookup, id, 100, deadline, &reply) != NetStatus::kOk) return;
    HOLDS(reply.status <= Status::kWrongPeer && reply.payload_bytes == 0);
    wire::Reader reader = reply.reader();
    (void)reader.bytes(reply.fields_bytes, "fields");
  }
}

void check_got(const Call& call, const uint8_t* data, size_t size) {
  for (size_t i = 0; i < call.statuses.size(); ++i) {
    HOLDS(call.statuses[i] <= static_cast<uint8_t>(Status::kWrongPeer));
    if (call.statuses[i] != static_cast<uint8_t>(Status::kOk)) continue;
    const uint8_t* const bytes = call.memory[i].get();
    HOLDS(std::search(data, data + size, bytes, bytes + kLengths[i]) != data + size);
    const uint32_t digest = crc32c(0, bytes, kLengths[i]);
    const auto* const promised = reinterpret_cast<const uint8_t*>(&digest);
    HOLDS(std::search(data, data + size, promised, promised + sizeof(digest)) != data + size);
  }
}

}  // namespace

std::vector<Seed> seeds() {
  std::vector<Seed> seeds;
  const Call call;
  Bytes get{kGet}, missed{kGet}, put{kPut}, refused{kPut}, commit{kCommit}, lookup{kLookup};
  for (Bytes* each : {&get, &missed, &put, &refused, &commit, &lookup}) add_hello(*each);
  uint32_t id = 2;
  for (const EntryRun& run : call.runs) {
    wire::Writer fields, misses, statuses;
    Bytes payload;
    const std::vector<uint32_t> entries = run.entries(kShards);
    for (wire::Writer* each : {&fields, &misses, &statuses})
      each->u32(static_cast<uint32_t>(entries.size())).u32(0);
    for (const uint32_t entry : entries) {
      const Bytes page(kLengths[entry], static_cast<uint8_t>(entry + 1));
      fields.u8(0)
          .u8(kDigestCrc32c)
          .u16(0)
          .u32(kLengths[entry])
          .u32(crc32c(0, page.data(), page.size()))
          .u32(0);
      misses.u8(1).zeros(15);
      statuses.u8(entry % 3 == 2 ? 2 : 0);
      payload.insert(payload.end(), page.begin(), page.end());
    }
    statuses.u64(40 + id);
    add_reply(get, Op::kGet, id, Status::kOk, fields, payload);
    add_reply(missed, Op::kGet, id, Status::kOk, misses);
    add_reply(put, Op::kPut, id, Status::kOk, statuses);
    add_reply(refused, Op::kPut, id, id == 2 ? Status::kUnavailable : Status::kNotCommitted, statuses);
    ++id;
  }
  add_reply(put, Op::kCommit, id, Status::kOk, wire::Writer());
  add_reply(commit, Op::kCommit, 2, Status::kOk, wire::Writer());
  add_reply(lookup, Op::kLookup, 2, Status::kOk, wire::Writer().u32(1).u32(1).u32(0).u32(5));
  seeds = {{"get", get},         {"missed", missed}, {"put", put},
           {"refused", refused}, {"commit", commit}, {"lookup", lookup}};
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  Input input(data, size);
  const auto what = static_cast<Exchange>(input.take<uint8_t>() % kExchanges);
  const Bytes replies = input.rest();
  int ends[2];
  HOLDS(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  // All answers lie there before they are asked for; then the peer is gone.
  for (size_t at = 0; at < replies.size();) {
    const ssize_t n = ::send(ends[1], replies.data() + at, replies.size() - at, MSG_NOSIGNAL);
    if (n <= 0) break;
    at += static_cast<size_t>(n);
  }
  ::shutdown(ends[1], SHUT_WR);
  {
    ClientCounters counters;
    FrameConnection connection{ClientSocket(ends[0])};
    Call call;
    if (connection.hello({}, kAnyPeer, Deadline::after_ms(20000)) == NetStatus::kOk) {
      exchange(what, connection, call, counters);
      if (what == kGet) check_got(call, replies.data(), replies.size());
      if (what == kPut)
        for (const uint8_t status : call.statuses) HOLDS(status <= static_cast<uint8_t>(Status::kWrongPeer));
    }
  }
  ::close(ends[1]);
  return 0;
}

}  // namespace kvstore::fuzz
