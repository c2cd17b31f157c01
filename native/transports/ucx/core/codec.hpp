// The messages that set RDMA up (docs/protocol.md section 6): what each side tells the other about its memory. No IO; thread-safe.
//
// Every read_* function throws wire::WireError when a field is out of its bounds, or a packed address or key does not have its digest:
// UCX believes whatever it unpacks, and ends the process over it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "protocol/data_codec.hpp"
#include "protocol/wire.hpp"

namespace kvstore {

namespace rdma_codec {

// In HELLO's reply: this connection may ask for RDMA.
constexpr uint32_t kFeatureRdma = 2;
constexpr auto kOpConnect = static_cast<wire::Op>(27);
constexpr auto kOpRegister = static_cast<wire::Op>(28);

constexpr uint32_t kAddressBytesMax = 16384;  // of a worker
constexpr uint32_t kKeyBytesMax = 4096;       // of a memory registration

void write_connect(wire::Writer& body, const std::vector<uint8_t>& worker_address);
std::vector<uint8_t> read_connect(wire::Reader& body);

// The pool of a segment, as a client reads it.
struct RemotePool {
  data_codec::PoolGeometry geometry;
  uint64_t map_address = 0;  // in the segment's address space
  std::vector<uint8_t> worker_address;
  std::vector<uint8_t> key;
};
constexpr size_t kConnectFieldsBytes = data_codec::kAttachFieldsBytes + 24 + kAddressBytesMax + kKeyBytesMax;
void write_connect_reply(wire::Writer& reply, const RemotePool& pool);
RemotePool read_connect_reply(const FrameReply& reply);

struct Registration {
  uint64_t address = 0;  // in the writer's address space
  uint64_t bytes = 0;
  std::vector<uint8_t> key;
};
void write_register(wire::Writer& body, uint64_t address, uint64_t bytes, const std::vector<uint8_t>& key);
Registration read_register(wire::Reader& body);

}  // namespace rdma_codec

// The buffers that a writer registered on one connection. One thread's.
class RemoteBuffers {
 public:
  static constexpr size_t kBuffersMax = 256;
  struct Buffer {
    uint64_t address;
    uint64_t bytes;
  };

  // Throws wire::WireError over the cap.
  uint32_t add(uint64_t address, uint64_t bytes);
  // Both throw wire::WireError for an unknown id.
  void remove(uint32_t id);
  const Buffer& at(uint32_t id) const;

 private:
  std::map<uint32_t, Buffer> buffers_;
  uint32_t next_id_ = 1;
};

}  // namespace kvstore
