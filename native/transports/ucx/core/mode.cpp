#include "transports/ucx/core/mode.hpp"

#include <stdexcept>
#include <string>

namespace kvstore {

RdmaMode rdma_mode(std::string_view name) {
  if (name == "off") return RdmaMode::kOff;
  if (name == "auto") return RdmaMode::kAuto;
  if (name == "required") return RdmaMode::kRequired;
  throw std::invalid_argument("rdma: 'off', 'auto' or 'required', not '" + std::string(name) + "'");
}

}  // namespace kvstore
