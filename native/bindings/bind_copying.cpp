#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "bindings.hpp"
#include "released_gil.hpp"
#include "segment/copying/object_copier.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvstore {
namespace {

struct CopyCancellation {
  std::atomic<bool> cancelled{false};
};

template <size_t kSize>
std::array<uint8_t, kSize> exactly(const nb::bytes& data, const char* what) {
  if (data.size() != kSize)
    throw nb::value_error(
        (std::string(what) + " has " + std::to_string(kSize) + " bytes, not " + std::to_string(data.size()))
            .c_str());
  std::array<uint8_t, kSize> out;
  std::memcpy(out.data(), data.data(), kSize);
  return out;
}

nb::tuple copy(ObjectCopier& copier, CopyCancellation& cancellation, std::string host, uint16_t port,
               std::string unix_path, const nb::bytes& pool_id, const nb::bytes& ns,
               const nb::bytes& fingerprints, bool may_evict, uint64_t bytes_per_s, uint32_t timeout_ms) {
  if (fingerprints.size() % kFingerprintBytes != 0)
    throw nb::value_error("fingerprints come in 16 bytes each");
  CopyOrder order;
  order.host = std::move(host);
  order.port = port;
  order.unix_path = std::move(unix_path);
  order.pool_id = exactly<16>(pool_id, "pool_id");
  order.ns = exactly<kNamespaceBytes>(ns, "a namespace id");
  order.fingerprints.resize(fingerprints.size() / kFingerprintBytes);
  if (!order.fingerprints.empty())
    std::memcpy(order.fingerprints.data(), fingerprints.data(), fingerprints.size());
  order.may_evict = may_evict;
  order.bytes_per_s = bytes_per_s;
  order.timeout = std::chrono::milliseconds(timeout_ms);
  CopyOutcome outcome;
  {
    ReleasedGil nogil;
    outcome = copier.copy(order, cancellation.cancelled);
  }
  return nb::make_tuple(nb::bytes(outcome.statuses.data(), outcome.statuses.size()), outcome.copied_bytes,
                        outcome.trouble);
}

}  // namespace

void bind_copying(nb::module_& m) {
  nb::class_<CopyCancellation>(m, "CopyCancellation").def(nb::init<>());
  nb::class_<ObjectCopier>(m, "ObjectCopier")
      .def(nb::init<std::shared_ptr<SegmentStore>, std::string>(), "store"_a, nb::kw_only(), "token"_a = "")
      .def("copy", &copy, "cancellation"_a, nb::kw_only(), "host"_a, "port"_a, "unix_path"_a, "pool_id"_a,
           "ns"_a, "fingerprints"_a, "may_evict"_a = false, "bytes_per_s"_a = 0, "timeout_ms"_a = 60000)
      .def(
          "cancel",
          [](ObjectCopier& copier, CopyCancellation& cancellation) {
            ReleasedGil nogil;
            copier.cancel(cancellation.cancelled);
          },
          "cancellation"_a);
}

}  // namespace kvstore
