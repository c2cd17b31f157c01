#include "segment/data_port/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "protocol/fetch_codec.hpp"

namespace kvstore {
namespace {

using wire::Op;
using wire::Status;
using wire::WireError;

constexpr size_t kBodyKeptBytes =
    64u << 10;  // a larger body buffer grows with what arrives, and is not kept between requests
constexpr uint32_t kTimeoutMsMax = 60000;
// Of a get, for others to give back what they hold: a client that gives up before closes its connection.
constexpr auto kHeldWait = std::chrono::seconds(5);
constexpr auto kHeldLook = std::chrono::milliseconds(250);
constexpr std::string_view kNotConfirmed = "the directory did not confirm in time";

// Takes as long whatever the bytes are, so that a token can't be guessed byte by byte.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<uint8_t>(a[i]) ^ static_cast<uint8_t>(b.empty() ? 0 : b[i % b.size()]);
  return difference == 0;
}

// Compares with each of them, so that how long it takes does not tell which one it is.
bool is_one_of(const std::vector<std::string>& tokens, std::string_view presented) {
  if (tokens.empty()) return presented.empty();
  bool found = false;
  for (const std::string& token : tokens) found |= equal_in_constant_time(presented, token);
  return found;
}

wire::Writer reply_body(Status status, std::string_view text = {}, size_t reserve = 0) {
  wire::Writer reply(wire::kReplyPrefixBytes + text.size() + reserve);
  reply.reply_prefix(status, text, 0);
  return reply;
}

// Gives held reads back however the scope is left.
struct HeldReads {
  SegmentStore& store;
  std::vector<ReadEntry> entries;
  ~HeldReads() { store.release_reads(entries); }
};

// What was taken of a budget in turn, until it is counted as what it was taken for.
struct Turn {
  Budget& budget;
  uint64_t bytes = 0;
  ~Turn() { end(); }
  void end() { budget.give_back(std::exchange(bytes, 0)); }
};

}  // namespace

OpTable::OpTable() {
  const std::pair<Op, void (ServerSession::*)(wire::Reader&)> kBuiltin[] = {
      {Op::kPin, &ServerSession::on_pin},
      {Op::kLocate, &ServerSession::on_locate},
      {Op::kGet, &ServerSession::on_get},
      {Op::kPut, &ServerSession::on_put},
      {Op::kUnpin, &ServerSession::on_unpin},
      {Op::kRemove, &ServerSession::on_remove},
      {Op::kAttach, &ServerSession::on_attach},
      {Op::kRegister, &ServerSession::on_register},
      {Op::kUnregister, &ServerSession::on_unregister},
      {Op::kPull, &ServerSession::on_pull},
      {Op::kSuspect, &ServerSession::on_suspect},
      {Op::kCommit, &ServerSession::on_commit},
      {Op::kKeep, &ServerSession::on_keep},
      {Op::kFetch, &ServerSession::on_fetch}};
  for (const auto& [op, method] : kBuiltin) add(op, std::mem_fn(method));
}

void OpTable::add(Op op, Handler handler) {
  Handler& place = handlers_[static_cast<uint8_t>(op)];
  if (place || op == Op::kHello)
    throw std::logic_error("op " + std::to_string(static_cast<unsigned>(op)) + " is handled already");
  place = std::move(handler);
}

const OpTable::Handler& OpTable::at(uint8_t op) const {
  if (!handlers_[op])
    throw WireError(Status::kBadRequest, "op " + std::to_string(op) + " is not one of the data port");
  return handlers_[op];
}

ServerSession::ServerSession(SessionContext& context, int fd, bool is_unix, Clock::time_point since)
    : context_(context),
      store_(context.store),
      socket_(fd, is_unix),
      id_(1 + context.sessions.fetch_add(1, std::memory_order_relaxed) % (UINT32_MAX - 1)),
      since_(since),
      ungreeted_(store_.budgets().ungreeted),
      connected_(store_.budgets().connections),
      holds_(context.store),
      batch_(context.store),
      buffers_(store_.budgets()),
      body_bytes_(store_.budgets().body_bytes) {
  ungreeted_.take_anyway(1);
}

void ServerSession::run() noexcept {
  try {
    if (hello())
      while (serve_one()) {
      }
  } catch (const ConnectionEnded&) {  // the ordinary end
  } catch (const std::exception&) {
    context_.counters.internal_errors.fetch_add(1, std::memory_order_relaxed);
  }
  part_.reset();
  forget_large_body();
  ungreeted_.give_back_all();
  connected_.give_back_all();
  if (is_greeted()) context_.greeted.fetch_sub(1);
}

bool ServerSession::read_request() {
  uint8_t header[wire::kHeaderBytes];
  socket_.read(header, sizeof(header), transfer_deadline(sizeof(header)));
  if (!decode_request_header(header)) return false;
  payload_taken_ = request_.payload_bytes == 0;
  if (read_body()) return true;
  reply_error(Status::kUnavailable, "the request bodies of all connections are over " +
                                        std::to_string(body_bytes_.budget().limit()) +
                                        " bytes at this moment: send it again, or in smaller batches");
  socket_.linger();
  return false;
}

bool ServerSession::read_body() {
  const auto deadline = transfer_deadline(request_.body_bytes);
  for (size_t have = 0; have < request_.body_bytes;) {
    // Twice what has come, so that nobody gets memory for an announcement alone.
    const size_t size = std::min<size_t>(request_.body_bytes, std::max(kBodyKeptBytes, 2 * have));
    if (size > kBodyKeptBytes) {
      if (!body_bytes_.take(size - body_bytes_.taken())) return false;
      body_.reserve(size);  // exactly
    }
    body_.resize(size);
    socket_.read(body_.data() + have, size - have, deadline);
    have = size;
  }
  body_.resize(request_.body_bytes);
  return true;
}

void ServerSession::forget_large_body() noexcept {
  if (body_bytes_.taken() == 0) return;
  std::vector<uint8_t>().swap(body_);
  body_bytes_.give_back_all();
}

bool ServerSession::decode_request_header(const uint8_t* header) {
  try {
    request_ = wire::decode_header(header);
    if (request_.version != wire::kFrameVersion || request_.is_reply())
      throw WireError(Status::kBadRequest, "frame of another form, or a reply");
  } catch (const WireError&) {
    context_.counters.bad_requests.fetch_add(1, std::memory_order_relaxed);
    return false;  // no telling what follows, so there is nothing to answer to
  }
  return true;
}

bool ServerSession::hello() {
  const auto deadline = since_ + kHelloTimeout;
  const auto read = [&](void* to, size_t size) {
    try {
      socket_.read_in_time(to, size, deadline);
    } catch (const ConnectionEnded&) {
      if (Clock::now() >= deadline) count_ungreeted_dropped(context_);
      throw;
    }
  };
  uint8_t header[wire::kHeaderBytes];
  read(header, sizeof(header));
  if (!decode_request_header(header)) return false;
  const auto refuse = [this](Status status, const std::string& text) {
    reply_error(status, text);
    socket_.linger();
    return false;
  };
  try {
    if (static_cast<Op>(request_.op) != Op::kHello || request_.payload_bytes != 0)
      throw WireError(Status::kBadRequest, "the first frame of a connection is HELLO");
    if (request_.body_bytes > wire::kHelloBodyBytesMax)
      throw WireError(Status::kTooLarge,
                      "a HELLO of over " + std::to_string(wire::kHelloBodyBytesMax) + " bytes");
    body_.resize(request_.body_bytes);
    read(body_.data(), body_.size());
    wire::Reader body(body_.data(), body_.size());
    const uint8_t version_min = body.u8("min_version"), version_max = body.u8("max_version");
    const uint8_t role = body.u8("role");
    body.u8("reserved");
    const uint16_t token_bytes = body.u16("token_bytes"), name_bytes = body.u16("name_bytes");
    PoolId expected_peer;
    std::memcpy(expected_peer.data(), body.bytes(expected_peer.size(), "expected_peer"),
                expected_peer.size());
    if (token_bytes > wire::kTokenBytesMax)
      throw WireError(Status::kTooLarge, "token over " + std::to_string(wire::kTokenBytesMax) + " bytes");
    if (name_bytes > wire::kNameBytesMax)
      throw WireError(Status::kTooLarge, "name over " + std::to_string(wire::kNameBytesMax) + " bytes");
    const std::string_view token = body.text(token_bytes, "token");
    body.text(name_bytes, "name");
    if (version_min > wire::kVersionMax || version_max < wire::kVersionMin)
      return refuse(Status::kUnsupportedVersion, "versions " + std::to_string(wire::kVersionMin) + " to " +
                                                     std::to_string(wire::kVersionMax) + " are spoken here");
    if (!is_one_of(context_.tokens, token)) {
      // A tool that has no token of ours looks whether a segment is here, and guesses nothing.
      if (!token.empty() || static_cast<wire::Role>(role) != wire::Role::kTool)
        context_.counters.unauthorized.fetch_add(1, std::memory_order_relaxed);
      return refuse(Status::kUnauthorized, "wrong token");
    }
    if (expected_peer != PoolId{} && expected_peer != store_.pool_id())
      return refuse(Status::kWrongPeer, "this is another pool");
    if (context_.greeted.fetch_add(1) >= context_.connections_max) {
      context_.greeted.fetch_sub(1);
      context_.counters.refused_connections.fetch_add(1, std::memory_order_relaxed);
      connected_.budget().count_refused();
      return refuse(
          Status::kUnavailable,
          std::to_string(context_.connections_max) +
              " are connected to this segment, the most that connections_max and its limit of open files "
              "allow: raise them");
    }
    connected_.take_anyway(1);
    ungreeted_.give_back_all();
    greeted_.store(true, std::memory_order_relaxed);
  } catch (const WireError& e) {
    context_.counters.bad_requests.fetch_add(1, std::memory_order_relaxed);
    return refuse(e.status, e.what());
  }
  wire::Writer reply = reply_body(Status::kOk);
  reply.u8(wire::kVersionMax)
      .zeros(3)
      .u32(wire::kKeysMax)
      .u32(wire::kBodyBytesMax)
      .u64(wire::kPayloadBytesMax);
  const uint32_t features =
      wire::kFeatureCommit | wire::kFeatureKeep | wire::kFeatureFetch |
      (socket_.is_unix() ? wire::kFeatureUnix | context_.unix_features : context_.tcp_features);
  reply.raw(store_.pool_id().data(), 16).u32(features);
  send_reply(reply);
  return true;
}

bool ServerSession::serve_one() {
  forget_large_body();
  const auto idle_deadline = Clock::now() + context_.idle_timeout;
  SocketCompanion* companion = part_ == nullptr ? nullptr : part_->companion();
  while (!socket_.wait_readable(std::min(idle_deadline, holds_.next_deadline()), companion)) {
    holds_.expire(Clock::now());
    if (Clock::now() >= idle_deadline) return false;
  }
  holds_.expire(Clock::now());
  if (context_.stopping.load() || !read_request()) return false;
  context_.counters.requests.fetch_add(1, std::memory_order_relaxed);
  Status refusal = Status::kInternal;
  std::string text;
  try {
    wire::Reader body(body_.data(), body_.size());
    if (request_.payload_bytes != 0 && static_cast<Op>(request_.op) != Op::kPut)
      throw WireError(Status::kBadRequest, "only PUT carries a payload");
    context_.ops.at(request_.op)(*this, body);
    return true;
  } catch (const ConnectionEnded&) {
    throw;
  } catch (const WireError& e) {
    context_.counters.bad_requests.fetch_add(1, std::memory_order_relaxed);
    refusal = e.status;
    text = e.what();
  } catch (const std::exception& e) {
    context_.counters.internal_errors.fetch_add(1, std::memory_order_relaxed);
    text = e.what();
    payload_taken_ = false;  // no telling how far it got
  }
  reply_error(refusal, text);
  if (payload_taken_) return true;
  socket_.linger();
  return false;
}

void ServerSession::on_pin(wire::Reader& body) {
  const uint32_t pin_ms = body.u32("pin_ms");
  body.u32("reserved");
  reply_statuses(Status::kOk, store_.pin(read_key_block(body), pin_ms, id_));
}

void ServerSession::on_locate(wire::Reader& body) {
  const uint32_t hold_ms = std::min(body.u32("hold_ms"), kTimeoutMsMax);
  const uint32_t wait_ms = body.u32("wait_ms");
  const KeyBlock block = read_key_block(body);
  HeldReads reads{store_, store_.acquire_reads(block, nullptr, holds_.bytes())};
  store_.bring_into_memory(block, wait_ms, context_.stopping, holds_.bytes(), reads.entries);
  wire::Writer reply = reply_body(Status::kOk, {}, 8 + reads.entries.size() * 32);
  reply.u32(static_cast<uint32_t>(reads.entries.size())).u32(0);
  for (const ReadEntry& read : reads.entries)
    reply.u64(read.offset)
        .u64(read.generation)
        .u32(read.length)
        .u32(read.digest)
        .u32(read.wire_slot)
        .u8(static_cast<uint8_t>(read.status))
        .u8(read.digest_alg)
        .u16(0);
  holds_.add(request_.request_id, reads.entries, Clock::now() + std::chrono::milliseconds(hold_ms));
  send_reply(reply);
}

void ServerSession::on_get(wire::Reader& body) {
  const uint32_t wait_ms = body.u32("wait_ms");
  body.u32("reserved");
  const KeyBlock block = read_key_block(body);
  const uint8_t* expected = body.bytes(size_t{block.entry_count()} * 4, "expected_length");
  HeldReads reads{store_, acquire_or_wait(block, expected)};
  store_.read_from_disk(block, expected, wait_ms, context_.stopping, reads.entries);
  wire::Writer reply = reply_body(Status::kOk, {}, 8 + reads.entries.size() * 16);
  reply.u32(block.entry_count()).u32(0);
  std::vector<iovec> payload;
  uint64_t payload_bytes = 0;
  for (const ReadEntry& read : reads.entries) {
    reply.u8(static_cast<uint8_t>(read.status))
        .u8(read.digest_alg)
        .u16(0)
        .u32(read.length)
        .u32(read.digest)
        .u32(0);
    if (read.status != Status::kOk) continue;
    payload.push_back({const_cast<uint8_t*>(read.data), read.length});
    payload_bytes += read.length;
  }
  if (payload_bytes > wire::kPayloadBytesMax)
    throw WireError(Status::kTooLarge, "objects of " + std::to_string(payload_bytes) +
                                           " bytes in all are over the payload cap of " +
                                           std::to_string(wire::kPayloadBytesMax) + ": cut the batch");
  const ServerSocket::Transfer transfer(socket_, {context_.stall_timeout, &store_.budgets().held_bytes});
  send_reply(reply, payload, payload_bytes);
}

std::vector<ReadEntry> ServerSession::acquire_or_wait(const KeyBlock& block,
                                                      const uint8_t* expected_lengths) {
  Budget& budget = store_.budgets().held_bytes;
  const auto deadline = Clock::now() + kHeldWait;
  Turn turn{budget};
  for (;;) {
    uint64_t wanted_bytes = 0, largest_bytes = 0;
    bool refused = false;
    {
      HeldReads reads{store_, store_.acquire_reads(block, expected_lengths, holds_.bytes(), turn.bytes > 0)};
      turn.end();
      for (const ReadEntry& read : reads.entries) {
        refused |= read.status == Status::kUnavailable;
        if (read.status != Status::kOk && read.status != Status::kUnavailable) continue;
        wanted_bytes += ExtentAllocator::rounded(read.length);
        largest_bytes = std::max(largest_bytes, ExtentAllocator::rounded(read.length));
      }
      // Waiting keeps hold of nothing. What is more than will ever be allowed is not waited for.
      if (!refused || wanted_bytes > budget.largest() || Clock::now() >= deadline ||
          context_.stopping.load() || socket_.peer_has_closed())
        return std::move(reads.entries);
    }
    // Kept until the objects are counted: one that waits on, for as large ones, would keep us from them otherwise.
    if (budget.take_in_turn(wanted_bytes, largest_bytes, std::min(deadline, Clock::now() + kHeldLook),
                            context_.stopping))
      turn.bytes = wanted_bytes;
  }
}

bool ServerSession::committed(bool wanted, uint64_t seq, uint32_t timeout_ms) {
  durable_seq_ = std::max(durable_seq_, seq);
  return !wanted || wait_durable(durable_seq_, timeout_ms);
}

bool ServerSession::wait_durable(uint64_t seq, uint32_t timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kTimeoutMsMax));
  if (store_.journal().wait_acked(seq, deadline, context_.stopping)) return true;
  store_.count_not_committed();
  return false;
}

// A batch ends with its commit. Of one that is never committed nothing tells the end but that no run of it follows: where
// commits are not usual, a batch whose next run is not here yet is taken to be over.
void ServerSession::end_batch(bool commit_asked) noexcept {
  if (commit_asked)
    batch_.expect_commit();
  else if (batch_.is_committed_later() || socket_.has_more())
    return;
  batch_.end();
}

void ServerSession::on_commit(wire::Reader& body) {
  const uint64_t seq = body.u64("journal_seq");
  const uint32_t commit_timeout_ms = body.u32("commit_timeout_ms");
  body.u32("reserved");
  if (seq > store_.journal().last_seq())
    throw WireError(Status::kBadRequest,
                    "journal number " + std::to_string(seq) + " was never given: this is another journal");
  const bool durable = wait_durable(seq, commit_timeout_ms);
  end_batch(true);
  store_.end_batches_up_to(seq);
  if (durable)
    send_reply(reply_body(Status::kOk));
  else
    reply_error(Status::kNotCommitted, kNotConfirmed);
}

void ServerSession::on_put(wire::Reader& body) {
  const PutRequest put = read_put_request(body);
  const uint64_t announced = put.total_bytes + uint64_t{put.entry_count()} * 4;
  if (request_.payload_bytes != announced)
    throw WireError(Status::kBadRequest, "payload of " + std::to_string(request_.payload_bytes) +
                                             " bytes, but lengths and digests make " +
                                             std::to_string(announced));
  PutTransfer transfer(store_, put, context_.stopping, batch_);
  transfer.receive(socket_, context_.stall_timeout);
  payload_taken_ = true;
  const uint64_t seq = transfer.seal();
  finish_put(put, transfer.statuses(), seq);
}

void ServerSession::on_pull(wire::Reader& body) {
  RemoteMemory* const remote = socket_.is_unix() ? nullptr : &require_remote_memory();
  const PutRequest put = read_put_request(body);
  const PullPieces pieces = read_pull_pieces(body, put, remote != nullptr || put.has_digests);
  PutTransfer transfer(store_, put, context_.stopping, batch_);
  if (remote != nullptr)
    transfer.pull(*remote, pieces);
  else
    transfer.pull(buffers_, pieces);
  // A writer whose deadline has passed closes its connection before it lets anybody touch its memory again. While
  // it is open after the last byte was copied, the copy is of what the writer meant; otherwise nobody knows.
  if (socket_.peer_has_closed())
    throw ConnectionEnded("the writer gave up while its memory was being copied");
  const uint64_t seq = transfer.seal();
  finish_put(put, transfer.statuses(), seq);
}

void ServerSession::on_remove(wire::Reader& body) {
  const bool ack = body.u8("ack") != 0;
  body.bytes(3, "reserved");
  const uint32_t commit_timeout_ms = body.u32("commit_timeout_ms");
  const auto [statuses, seq] = store_.remove(read_key_block(body));
  const bool durable = committed(ack, seq, commit_timeout_ms);
  reply_statuses(durable ? Status::kOk : Status::kNotCommitted, statuses);
}

void ServerSession::on_keep(wire::Reader& body) {
  const wire::KeepWish wish = wire::read_keep_wish(body);
  reply_statuses(Status::kOk, store_.keep(read_key_block(body), wish));
}

void ServerSession::on_fetch(wire::Reader& body) {
  const fetch_codec::FetchRequest request = fetch_codec::read_request(body);
  SegmentStore::Copyable copies = store_.acquire_copies(request, holds_.bytes());
  const HeldReads reads{store_, std::move(copies.reads)};
  std::vector<iovec> payload;
  uint64_t payload_bytes = 0;
  for (const ReadEntry& read : reads.entries) {
    if (read.status != Status::kOk) continue;
    payload.push_back({const_cast<uint8_t*>(read.data), read.length});
    payload_bytes += read.length;
  }
  if (payload_bytes > wire::kPayloadBytesMax)
    throw WireError(Status::kTooLarge,
                    "bytes_max is over the payload cap of " + std::to_string(wire::kPayloadBytesMax));
  wire::Writer reply = reply_body(Status::kOk, {}, fetch_codec::fields_bytes_max(copies.objects.size()));
  fetch_codec::write_reply(reply, copies.objects);
  const ServerSocket::Transfer transfer(socket_, {context_.stall_timeout, &store_.budgets().held_bytes});
  send_reply(reply, payload, payload_bytes);
}

void ServerSession::on_suspect(wire::Reader& body) {
  reply_statuses(Status::kOk, store_.verify(read_key_block(body)));
}

void ServerSession::require_unix() const {
  if (!socket_.is_unix()) throw WireError(Status::kBadRequest, "this op needs the unix socket");
}

RemoteMemory& ServerSession::require_remote_memory() const {
  RemoteMemory* const memory = part_ == nullptr ? nullptr : part_->memory();
  if (memory == nullptr)
    throw WireError(Status::kBadRequest,
                    "this op needs the unix socket, or a connection that registers memory");
  return *memory;
}

void ServerSession::set_part(std::unique_ptr<SessionPart> part) {
  if (part_ != nullptr) throw WireError(Status::kBadRequest, "this connection has its transport already");
  part_ = std::move(part);
}

void ServerSession::reply(const wire::Writer& fields) {
  wire::Writer reply = reply_body(Status::kOk, {}, fields.size());
  reply.raw(fields.data(), fields.size());
  send_reply(reply);
}

void ServerSession::on_unregister(wire::Reader& body) {
  const uint32_t id = body.u32("buffer_id");
  if (socket_.is_unix())
    buffers_.remove(id);
  else
    require_remote_memory().remove(id);
  send_reply(reply_body(Status::kOk));
}

void ServerSession::on_unpin(wire::Reader& body) { holds_.drop(body.u32("locate_id")); }

void ServerSession::on_attach(wire::Reader&) {
  require_unix();
  wire::Writer reply = reply_body(Status::kOk);
  reply.u64(store_.pool().map_bytes()).u64(0).u32(store_.wire_slots_end()).u32(sizeof(SlotHeader));
  reply.raw(store_.pool_id().data(), 16);
  send_reply(reply, {}, 0, store_.pool().read_only_fd());
}

void ServerSession::on_register(wire::Reader& body) {
  require_unix();
  const int fd = socket_.take_descriptor();  // before anything else can throw: it belongs to this request
  const auto made = buffers_.add(fd, body.left() >= 8 ? body.u64("bytes") : 0);
  if (!made) {  // a client that has many is no bad one
    const Budget& budget = store_.budgets().registered_buffers;
    return reply_error(Status::kTooLarge, "over the cap of " + std::to_string(budget.session_limit()) +
                                              " registered buffers a connection, or of " +
                                              std::to_string(budget.limit()) +
                                              " in all: its pages come over the socket");
  }
  wire::Writer reply = reply_body(Status::kOk);
  reply.u32(made->id).u32(static_cast<uint32_t>(made->mode));
  send_reply(reply);
}

void ServerSession::finish_put(const PutRequest& put, const SegmentStore::Statuses& statuses, uint64_t seq) {
  const uint32_t not_kept = put.has_intent ? store_.keep_stored(put.block, put.keep, statuses) : 0;
  const bool durable = committed(put.ack_committed, seq, put.commit_timeout_ms);
  if (put.ack_committed) end_batch(true);
  wire::Writer reply = reply_body(durable ? Status::kOk : Status::kNotCommitted, durable ? "" : kNotConfirmed,
                                  24 + statuses.size());
  reply.u32(static_cast<uint32_t>(statuses.size())).u32(0).raw(statuses.data(), statuses.size());
  reply.u64(seq);
  if (put.has_intent) reply.u32(not_kept).u32(0);
  send_reply(reply);
  if (!put.ack_committed) end_batch(false);
}

void ServerSession::reply_statuses(Status status, const SegmentStore::Statuses& statuses) {
  wire::Writer reply = reply_body(status, status == Status::kOk ? "" : kNotConfirmed, 8 + statuses.size());
  reply.u32(static_cast<uint32_t>(statuses.size())).u32(0).raw(statuses.data(), statuses.size());
  send_reply(reply);
}

void ServerSession::reply_error(Status status, std::string_view text) {
  send_reply(reply_body(status, text));
}

void ServerSession::send_reply(const wire::Writer& reply, const std::vector<iovec>& payload,
                               uint64_t payload_bytes, int pass_fd) {
  wire::Header header;
  header.op = request_.op;
  header.flags = wire::kFlagReply;
  header.request_id = request_.request_id;
  header.body_bytes = static_cast<uint32_t>(reply.size());
  header.payload_bytes = payload_bytes;
  uint8_t encoded[wire::kHeaderBytes];
  wire::encode_header(header, encoded);
  std::vector<iovec> vectors;
  vectors.reserve(2 + payload.size());
  vectors.push_back({encoded, sizeof(encoded)});
  vectors.push_back({const_cast<uint8_t*>(reply.data()), reply.size()});
  vectors.insert(vectors.end(), payload.begin(), payload.end());
  socket_.write(vectors, transfer_deadline(reply.size() + payload_bytes), pass_fd);
}

}  // namespace kvstore
