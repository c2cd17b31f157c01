#include "transports/ucx/core/codec.hpp"

#include <string>

#include "base/digest.hpp"

namespace kvstore {

namespace rdma_codec {
namespace {

using wire::Status;
using wire::WireError;

uint32_t checked_bytes(uint32_t bytes, uint32_t bytes_max, const char* what) {
  if (bytes == 0) throw WireError(Status::kBadRequest, std::string(what) + " is empty");
  if (bytes > bytes_max)
    throw WireError(Status::kTooLarge, std::string(what) + " of " + std::to_string(bytes) +
                                           " bytes is over the cap of " + std::to_string(bytes_max));
  return bytes;
}

std::vector<uint8_t> take(wire::Reader& reader, uint32_t bytes, const char* what) {
  const uint8_t* from = reader.bytes(bytes, what);
  return {from, from + bytes};
}

uint32_t digest_of(const std::vector<uint8_t>& first, const std::vector<uint8_t>& second = {}) {
  return crc32c(crc32c(0, first.data(), first.size()), second.data(), second.size());
}

void check_digest(uint32_t found, uint32_t promised) {
  if (found != promised)
    throw WireError(Status::kDigestMismatch, "the packed address or key was damaged on its way");
}

void check_range(uint64_t address, uint64_t bytes, const char* what) {
  if (address == 0 || bytes == 0 || address + bytes < address)
    throw WireError(Status::kBadRequest, std::string(what) + " of " + std::to_string(bytes) + " bytes at " +
                                             std::to_string(address) + " is no memory");
}

}  // namespace

void write_connect(wire::Writer& body, const std::vector<uint8_t>& worker_address) {
  body.u32(static_cast<uint32_t>(worker_address.size())).u32(digest_of(worker_address));
  body.raw(worker_address.data(), worker_address.size());
}

std::vector<uint8_t> read_connect(wire::Reader& body) {
  const uint32_t bytes = checked_bytes(body.u32("address_bytes"), kAddressBytesMax, "the worker address");
  const uint32_t digest = body.u32("digest");
  std::vector<uint8_t> address = take(body, bytes, "worker address");
  check_digest(digest_of(address), digest);
  return address;
}

void write_connect_reply(wire::Writer& reply, const RemotePool& pool) {
  const data_codec::PoolGeometry& g = pool.geometry;
  reply.u64(g.map_bytes).u64(g.table_offset).u32(g.slot_count).u32(g.slot_bytes);
  reply.raw(g.pool_id.data(), g.pool_id.size()).u64(pool.map_address);
  reply.u32(static_cast<uint32_t>(pool.worker_address.size())).u32(static_cast<uint32_t>(pool.key.size()));
  reply.u32(digest_of(pool.worker_address, pool.key)).u32(0);
  reply.raw(pool.worker_address.data(), pool.worker_address.size()).raw(pool.key.data(), pool.key.size());
}

RemotePool read_connect_reply(const FrameReply& reply) {
  RemotePool pool;
  pool.geometry = data_codec::read_attach_reply(reply);
  wire::Reader reader = reply.reader();
  reader.bytes(data_codec::kAttachFieldsBytes, "geometry");
  pool.map_address = reader.u64("map_address");
  check_range(pool.map_address, pool.geometry.map_bytes, "a pool");
  const uint32_t address_bytes =
      checked_bytes(reader.u32("address_bytes"), kAddressBytesMax, "the worker address");
  const uint32_t key_bytes = checked_bytes(reader.u32("key_bytes"), kKeyBytesMax, "the pool's key");
  const uint32_t digest = reader.u32("digest");
  reader.u32("reserved");
  pool.worker_address = take(reader, address_bytes, "worker address");
  pool.key = take(reader, key_bytes, "key");
  check_digest(digest_of(pool.worker_address, pool.key), digest);
  return pool;
}

void write_register(wire::Writer& body, uint64_t address, uint64_t bytes, const std::vector<uint8_t>& key) {
  body.u64(address)
      .u64(bytes)
      .u32(static_cast<uint32_t>(key.size()))
      .u32(digest_of(key))
      .raw(key.data(), key.size());
}

Registration read_register(wire::Reader& body) {
  Registration r;
  r.address = body.u64("address");
  r.bytes = body.u64("bytes");
  check_range(r.address, r.bytes, "a buffer");
  const uint32_t key_bytes = checked_bytes(body.u32("key_bytes"), kKeyBytesMax, "the buffer's key");
  const uint32_t digest = body.u32("digest");
  r.key = take(body, key_bytes, "key");
  check_digest(digest_of(r.key), digest);
  return r;
}

}  // namespace rdma_codec

uint32_t RemoteBuffers::add(uint64_t address, uint64_t bytes) {
  if (buffers_.size() >= kBuffersMax)
    throw wire::WireError(wire::Status::kTooLarge, "over the cap of " + std::to_string(kBuffersMax) +
                                                       " registered buffers a connection");
  const uint32_t id = next_id_++;
  buffers_.emplace(id, Buffer{address, bytes});
  return id;
}

void RemoteBuffers::remove(uint32_t id) {
  at(id);
  buffers_.erase(id);
}

const RemoteBuffers::Buffer& RemoteBuffers::at(uint32_t id) const {
  const auto found = buffers_.find(id);
  if (found == buffers_.end())
    throw wire::WireError(wire::Status::kBadRequest,
                          "no buffer " + std::to_string(id) + " is registered on this connection");
  return found->second;
}

}  // namespace kvstore
