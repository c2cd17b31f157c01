// How an exchange with a peer ended, as far as the connection is concerned.
#pragma once

#include <cstdint>

#include "protocol/wire.hpp"

namespace kvstore {

enum class NetStatus : uint8_t {
  kOk = 0,
  kTimeout,      // the deadline passed, or a probe saw no progress
  kUnreachable,  // could not connect, or every connection allowed is in use
  kClosed,       // the peer went away
  kProtocol,     // the peer sent what it must not; the connection is unusable
  kRefused,      // HELLO was answered with a refusal: wrong peer, token or version
  kUnresolved,   // the name has no address
};

// What the entries of a batch become when the exchange that should have answered them failed.
inline wire::Status entry_status(NetStatus status) {
  return status == NetStatus::kTimeout ? wire::Status::kTimeout : wire::Status::kUnavailable;
}

}  // namespace kvstore
