// A reply as its receiver sees it, and the identity of whoever sent it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "protocol/wire.hpp"

namespace kvstore {

using PeerId = std::array<uint8_t, 16>;
constexpr PeerId kAnyPeer{};

// Views into the connection's buffer, valid until its next receive.
struct FrameReply {
  wire::Status status = wire::Status::kInternal;
  std::string_view text;
  uint64_t map_epoch = 0;
  uint64_t payload_bytes = 0;
  const uint8_t* fields = nullptr;  // the reply's own fields, after prefix and text
  size_t fields_bytes = 0;

  wire::Reader reader() const { return wire::Reader(fields, fields_bytes); }
};

}  // namespace kvstore
