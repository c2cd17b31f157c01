#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "base/digest.hpp"
#include "bindings.hpp"
#include "protocol/keys.hpp"
#include "released_gil.hpp"

namespace nb = nanobind;

namespace kvstore {
namespace {

// Borrows a C-contiguous buffer for the length of a call; the GIL must be held to make and to destroy it.
class BufferView {
 public:
  explicit BufferView(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  const void* data() const { return view_.buf; }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

uint32_t crc32c_of(nb::handle data) {
  const BufferView view(data);
  ReleasedGil nogil;
  return crc32c(0, view.data(), view.size());
}

template <typename Hash>
nb::bytes hash_all(const nb::list& keys, Hash&& hash) {
  std::string out;
  out.reserve(keys.size() * kHashBytes);
  for (nb::handle item : keys) {
    Py_ssize_t n = 0;
    const char* text = PyUnicode_AsUTF8AndSize(item.ptr(), &n);
    if (text == nullptr) throw nb::python_error();
    if (static_cast<size_t>(n) > wire::kTextBytesMax)
      throw nb::value_error(("a key of " + std::to_string(n) + " bytes is over the limit of " +
                             std::to_string(wire::kTextBytesMax))
                                .c_str());
    const PageHash h = hash(std::string_view(text, static_cast<size_t>(n)));
    out.append(reinterpret_cast<const char*>(h.data()), h.size());
  }
  return nb::bytes(out.data(), out.size());
}

nb::bytes fingerprints_of(nb::bytes ns, uint16_t pool, nb::bytes shards, nb::bytes hashes) {
  if (ns.size() != kNamespaceBytes) throw nb::value_error("a namespace id has 8 bytes");
  if (shards.size() == 0 || shards.size() % kShardBytes != 0)
    throw nb::value_error("shards come in 12 bytes each");
  if (hashes.size() == 0 || hashes.size() % kHashBytes != 0)
    throw nb::value_error("hashes come in 32 bytes each");
  KeyBlock block;
  std::memcpy(block.ns.data(), ns.data(), kNamespaceBytes);
  block.pool = pool;
  block.shard_count = static_cast<uint32_t>(shards.size() / kShardBytes);
  block.key_count = static_cast<uint32_t>(hashes.size() / kHashBytes);
  block.shards = static_cast<const uint8_t*>(shards.data());
  block.hashes = static_cast<const uint8_t*>(hashes.data());
  const std::vector<Fingerprint> all = block.fingerprints();
  static_assert(sizeof(Fingerprint) == kFingerprintBytes, "fingerprints are copied as they lie");
  return nb::bytes(all.data(), all.size() * kFingerprintBytes);
}

nb::bytes namespace_id_of(nb::bytes identity, uint32_t epoch) {
  const NamespaceId id = namespace_id({static_cast<const char*>(identity.data()), identity.size()}, epoch);
  return nb::bytes(id.data(), id.size());
}

}  // namespace

void bind_keys(nb::module_& m) {
  m.def("crc32c", &crc32c_of, nb::arg("data"));
  m.def("crc32c_implementation", &crc32c_implementation);
  m.def(
      "string_hashes", [](const nb::list& texts) { return hash_all(texts, string_hash); }, nb::arg("texts"));
  m.def("hex_hashes", [](const nb::list& keys) { return hash_all(keys, page_hash); }, nb::arg("keys"));
  m.def("fingerprints", &fingerprints_of, nb::arg("ns"), nb::arg("pool"), nb::arg("shards"),
        nb::arg("hashes"));
  m.def("namespace_id", &namespace_id_of, nb::arg("identity"), nb::arg("epoch"));
}

}  // namespace kvstore
