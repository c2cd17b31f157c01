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

// Bytes of n hashes, and where to write them.
nb::bytes fresh_hashes(size_t n, uint8_t** out) {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(n * kHashBytes));
  if (bytes == nullptr) throw nb::python_error();
  *out = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(bytes));
  return nb::steal<nb::bytes>(bytes);
}

template <typename Hash>
nb::bytes hash_all(const nb::object& keys, Hash&& hash) {
  const nb::object items = nb::steal(PySequence_Fast(keys.ptr(), "keys come in a sequence"));
  if (!items.is_valid()) throw nb::python_error();
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  PyObject** const item = PySequence_Fast_ITEMS(items.ptr());
  uint8_t* out = nullptr;
  nb::bytes hashes = fresh_hashes(count, &out);
  for (size_t i = 0; i < count; ++i) {
    Py_ssize_t n = 0;
    const char* text = PyUnicode_AsUTF8AndSize(item[i], &n);
    if (text == nullptr) throw nb::python_error();
    if (static_cast<size_t>(n) > wire::kTextBytesMax)
      throw nb::value_error(("a key of " + std::to_string(n) + " bytes is over the limit of " +
                             std::to_string(wire::kTextBytesMax))
                                .c_str());
    const PageHash h = hash(std::string_view(text, static_cast<size_t>(n)));
    std::memcpy(out, h.data(), h.size());
    out += h.size();
  }
  return hashes;
}

[[noreturn]] void not_a_page_key() { throw nb::value_error("a page key has 32 bytes or 64 hex digits"); }

// One pass over a list of any length: a call with thousands of keys is made of little else.
nb::bytes page_hashes(const nb::object& keys) {
  const nb::object items = nb::steal(PySequence_Fast(keys.ptr(), "page keys come in a sequence"));
  if (!items.is_valid()) throw nb::python_error();
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  PyObject** const item = PySequence_Fast_ITEMS(items.ptr());
  uint8_t* out = nullptr;
  nb::bytes hashes = fresh_hashes(count, &out);
  for (size_t i = 0; i < count; ++i, out += kHashBytes) {
    if (PyUnicode_Check(item[i])) {
      Py_ssize_t n = 0;
      const char* text = PyUnicode_AsUTF8AndSize(item[i], &n);
      if (text == nullptr) throw nb::python_error();
      if (!read_hex_hash({text, static_cast<size_t>(n)}, out)) not_a_page_key();
    } else {
      const BufferView view(item[i]);
      if (view.size() != kHashBytes) not_a_page_key();
      std::memcpy(out, view.data(), kHashBytes);
    }
  }
  return hashes;
}

// One truth a key: whether all of its statuses are among those that `done` (a flag for each) calls done.
nb::list key_truths(const nb::bytes& statuses, const nb::bytes& done, size_t shard_count) {
  if (done.size() != 256 || shard_count == 0) throw nb::value_error("256 flags, and at least one shard");
  const auto* status = static_cast<const uint8_t*>(statuses.data());
  const auto* flags = static_cast<const uint8_t*>(done.data());
  const size_t keys = statuses.size() / shard_count;
  const nb::object truths = nb::steal(PyList_New(static_cast<Py_ssize_t>(keys)));
  if (!truths.is_valid()) throw nb::python_error();
  for (size_t key = 0; key < keys; ++key) {
    bool all = true;
    for (size_t shard = 0; shard < shard_count; ++shard) all &= flags[*status++] != 0;
    PyObject* const truth = all ? Py_True : Py_False;
    Py_INCREF(truth);
    PyList_SET_ITEM(truths.ptr(), static_cast<Py_ssize_t>(key), truth);
  }
  return nb::borrow<nb::list>(truths);
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
  m.def("hex_hashes", [](const nb::object& keys) { return hash_all(keys, page_hash); }, nb::arg("keys"));
  m.def("page_hashes", &page_hashes, nb::arg("keys"));
  m.def("key_truths", &key_truths, nb::arg("statuses"), nb::arg("done"), nb::arg("shard_count"));
  m.def("fingerprints", &fingerprints_of, nb::arg("ns"), nb::arg("pool"), nb::arg("shards"),
        nb::arg("hashes"));
  m.def("namespace_id", &namespace_id_of, nb::arg("identity"), nb::arg("epoch"));
}

}  // namespace kvstore
