// Bodies of the data port's replies, as a client reads them: a possible answer to what was asked, or a WireError.
#include <numeric>

#include "fuzz.hpp"
#include "protocol/data_codec.hpp"
#include "transports/ucx/core/codec.hpp"

namespace kvstore::fuzz {
namespace {

using namespace data_codec;
using wire::Op;
using wire::Status;

constexpr size_t kAskedMax = 64;

// What the reply is the answer to: mostly as many entries as it says, of the lengths that it says.
std::vector<uint32_t> asked_lengths(Op op, const FrameReply& reply) {
  const size_t stride = op == Op::kGet ? kGetEntryBytes : kLocateEntryBytes;
  const size_t length_at = op == Op::kGet ? 4 : 16;
  const uint32_t count = reply.fields_bytes < 4 ? 1 : wire::u32_at(reply.fields, 0);
  std::vector<uint32_t> lengths(count % kAskedMax, 100);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const size_t at = 8 + i * stride + length_at;
    if (i % 4 != 3 && at + 4 <= reply.fields_bytes) std::memcpy(&lengths[i], reply.fields + at, 4);
  }
  return lengths;
}

PoolGeometry pool() {
  PoolGeometry g;
  g.map_bytes = 1u << 31;
  g.slot_count = 1024;
  g.slot_bytes = kSlotHeaderBytes;
  return g;
}

void check_geometry(const PoolGeometry& g) {
  HOLDS(g.slot_bytes >= kSlotHeaderBytes && g.table_offset <= g.map_bytes);
  HOLDS(uint64_t{g.slot_count} * g.slot_bytes <= g.map_bytes - g.table_offset);
}

void check_locations(const std::vector<Location>& found, const std::vector<uint32_t>& lengths) {
  HOLDS(found.size() == lengths.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].status != Status::kOk) continue;
    HOLDS(found[i].offset + lengths[i] <= pool().map_bytes && found[i].slot < pool().slot_count);
    HOLDS(found[i].generation % 2 == 0);
  }
}

void read_fields(Op op, const FrameReply& reply) {
  const std::vector<uint32_t> lengths = asked_lengths(op, reply);
  if (op == Op::kGet) {
    const std::vector<GetAnswer> answers = read_get_reply(reply, lengths);
    uint64_t bytes = 0;
    for (size_t i = 0; i < answers.size(); ++i) bytes += answers[i].status == Status::kOk ? lengths[i] : 0;
    HOLDS(answers.size() == lengths.size() && bytes == reply.payload_bytes);
  } else if (op == Op::kLocate) {
    check_locations(read_locate_reply(reply, lengths, pool()), lengths);
  } else if (op == Op::kPut || op == Op::kPull) {
    HOLDS(read_put_reply(reply, lengths.size()).statuses.size() == lengths.size());
  } else if (op == Op::kAttach) {
    check_geometry(read_attach_reply(reply));
  } else if (op == rdma_codec::kOpConnect) {
    const rdma_codec::RemotePool pool = rdma_codec::read_connect_reply(reply);
    check_geometry(pool.geometry);
    HOLDS(pool.map_address + pool.geometry.map_bytes > pool.map_address);
    HOLDS(pool.worker_address.size() <= rdma_codec::kAddressBytesMax);
    HOLDS(pool.key.size() <= rdma_codec::kKeyBytesMax);
  } else {
    for (const Status status : read_statuses(reply, lengths.size())) HOLDS(status <= Status::kWrongPeer);
  }
}

}  // namespace

std::vector<Seed> seeds() { return golden_seeds("reply"); }

int fuzz_one(const uint8_t* data, size_t size) {
  if (size < wire::kHeaderBytes) return 0;
  try {
    const wire::Header header = wire::decode_header(data);
    wire::Reader reader(data + wire::kHeaderBytes, size - wire::kHeaderBytes);
    const wire::ReplyPrefix prefix = wire::read_reply_prefix(reader);
    HOLDS(prefix.status <= Status::kWrongPeer);
    FrameReply reply{prefix.status,        prefix.text, prefix.map_epoch,
                     header.payload_bytes, nullptr,     reader.left()};
    reply.fields = reader.bytes(reply.fields_bytes, "fields");
    read_fields(static_cast<Op>(header.op), reply);
  } catch (const wire::WireError& refused) {
    HOLDS(refused.what()[0] != '\0' && refused.status != Status::kOk);
  }
  return 0;
}

}  // namespace kvstore::fuzz
