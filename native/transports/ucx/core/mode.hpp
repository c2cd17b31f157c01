// How much a process wants RDMA.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvstore {

enum class RdmaMode : uint8_t {
  kOff,
  kAuto,      // use it where it works
  kRequired,  // no pages over TCP
};
// Of "off", "auto" or "required". Throws std::invalid_argument.
RdmaMode rdma_mode(std::string_view name);

}  // namespace kvstore
