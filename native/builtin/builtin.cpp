#include "builtin/builtin.hpp"

#include "transports/same_host/client/transport.hpp"
#include "transports/tcp/client/transport.hpp"
#include "transports/ucx/client/transport.hpp"
#include "transports/ucx/segment/extension.hpp"

namespace kvstore {

std::vector<TransportType> builtin_transports() {
  return {same_host_transport(), ucx_transport(), tcp_transport()};
}

std::vector<DataPortExtensionType> builtin_extensions() { return {ucx_extension()}; }

}  // namespace kvstore
