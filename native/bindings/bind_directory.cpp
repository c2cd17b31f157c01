#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <exception>

#include "bindings.hpp"
#include "master/directory_index.hpp"
#include "master/live_entries.hpp"
#include "released_gil.hpp"

namespace nb = nanobind;

namespace kvstore {
namespace {

PyObject* wire_error_type = nullptr;  // owned by the module

// wire::WireError -> kvstore_client._native.WireError, a ValueError with `status` (docs/protocol.md section
// 2).
void translate_wire_error(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const wire::WireError& e) {
    nb::object instance = nb::borrow(wire_error_type)(nb::str(e.what()));
    instance.attr("status") = static_cast<int>(e.status);
    PyErr_SetObject(wire_error_type, instance.ptr());
  }
}

nb::bytes to_bytes(const wire::Writer& writer) { return nb::bytes(writer.data(), writer.size()); }

// Runs `work` without the GIL and hands its body back as bytes.
template <typename Work>
nb::bytes body_of(Work&& work) {
  wire::Writer reply;
  {
    ReleasedGil nogil;
    reply = work();
  }
  return to_bytes(reply);
}

using Pair = std::pair<uint64_t, uint64_t>;
nb::tuple pair_of(const Pair& p) { return nb::make_tuple(p.first, p.second); }

nb::tuple apply(DirectoryIndex& self, uint32_t segment, nb::bytes groups) {
  DirectoryIndex::Applied applied;
  {
    ReleasedGil nogil;
    applied = self.apply(segment, groups.data(), groups.size());
  }
  return pair_of({applied.added, applied.removed});
}

nb::tuple place_demand(const DirectoryIndex& self, nb::bytes body, uint32_t replicas) {
  DirectoryIndex::Usage demand;
  {
    ReleasedGil nogil;
    demand = self.place_demand(body.data(), body.size(), replicas);
  }
  return pair_of({demand.entries, demand.bytes});
}

nb::tuple place_copies(const DirectoryIndex& self, nb::bytes body, uint32_t replicas,
                       const std::vector<std::vector<uint32_t>>& stripes, uint64_t run_bytes) {
  DirectoryIndex::CopiesPlaced placed;
  {
    ReleasedGil nogil;
    placed = self.place_copies(body.data(), body.size(), replicas, stripes, run_bytes);
  }
  return nb::make_tuple(to_bytes(placed.reply), placed.beside, placed.short_of);
}

nb::bytes next_chunk(DirectoryIndex::Snapshot& self) {
  std::optional<wire::Writer> chunk;
  {
    ReleasedGil nogil;
    chunk = self.next();
  }
  if (!chunk) throw nb::stop_iteration();
  return to_bytes(*chunk);
}

nb::tuple segment_usage(const DirectoryIndex& self, uint32_t segment) {
  const DirectoryIndex::Usage usage = self.segment_usage(segment);
  return pair_of({usage.entries, usage.bytes});
}

nb::dict namespace_usage(const DirectoryIndex& self) {
  nb::dict out;
  for (const auto& [id, usage] : self.namespace_usage())
    out[nb::bytes(id.data(), id.size())] = pair_of({usage.entries, usage.bytes});
  return out;
}

nb::tuple usage_of_namespace(const DirectoryIndex& self, nb::bytes ns) {
  if (ns.size() != kNamespaceBytes) throw nb::value_error("a namespace id has 8 bytes");
  NamespaceId id;
  std::memcpy(id.data(), ns.data(), id.size());
  const DirectoryIndex::Usage usage = self.namespace_usage(id);
  return pair_of({usage.entries, usage.bytes});
}

nb::dict namespace_parts(const DirectoryIndex& self, nb::bytes ns) {
  if (ns.size() != kNamespaceBytes) throw nb::value_error("a namespace id has 8 bytes");
  NamespaceId id;
  std::memcpy(id.data(), ns.data(), id.size());
  nb::dict out;
  for (const auto& [segment, usage] : self.namespace_parts(id)) out[nb::int_(segment)] = usage.bytes;
  return out;
}

nb::bytes take_duplicates(DirectoryIndex& self, size_t pages_max) {
  std::vector<Fingerprint> taken;
  {
    ReleasedGil nogil;
    taken = self.take_duplicates(pages_max);
  }
  return nb::bytes(reinterpret_cast<const char*>(taken.data()), taken.size() * kFingerprintBytes);
}

nb::tuple vouched_holders(const DirectoryIndex& self, nb::bytes fingerprint) {
  if (fingerprint.size() != kFingerprintBytes) throw nb::value_error("a fingerprint has 16 bytes");
  Fingerprint f;
  std::memcpy(&f, fingerprint.data(), kFingerprintBytes);
  const auto [ns, segments] = self.vouched_holders(f);
  nb::list holders;
  for (const uint32_t segment : segments) holders.append(segment);
  return nb::make_tuple(nb::bytes(ns.data(), ns.size()), holders);
}

nb::object find(const DirectoryIndex& self, nb::bytes fingerprint) {
  if (fingerprint.size() != kFingerprintBytes) throw nb::value_error("a fingerprint has 16 bytes");
  Fingerprint f;
  std::memcpy(&f.lo, fingerprint.data(), 8);
  std::memcpy(&f.hi, static_cast<const uint8_t*>(fingerprint.data()) + 8, 8);
  const auto found = self.find(f);
  if (!found) return nb::none();
  nb::list segments;
  for (uint32_t segment : found->segments) segments.append(segment);
  return nb::make_tuple(segments, found->length);
}

}  // namespace

void bind_directory(nb::module_& m) {
  wire_error_type = PyErr_NewException("kvstore_client._native.WireError", PyExc_ValueError, nullptr);
  if (wire_error_type == nullptr) throw nb::python_error();
  m.attr("WireError") = nb::borrow(wire_error_type);
  nb::register_exception_translator(translate_wire_error);

  const auto nogil = nb::call_guard<ReleasedGil>();
  nb::class_<DirectoryIndex::Snapshot>(m, "DirectorySnapshot")
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", &next_chunk);
  nb::class_<DirectoryIndex>(m, "DirectoryIndex")
      .def(nb::init<>())
      .def_static(
          "check", [](nb::bytes groups) { return DirectoryIndex::check(groups.data(), groups.size()); },
          nb::arg("groups"))
      .def("apply", &apply, nb::arg("segment"), nb::arg("groups"))
      .def("drop_segment", &DirectoryIndex::drop_segment, nb::arg("segment"), nogil)
      .def("sweep", &DirectoryIndex::sweep, nb::arg("entries_max"), nogil)
      .def("begin_inventory", &DirectoryIndex::begin_inventory, nb::arg("segment"), nogil)
      .def("end_inventory", &DirectoryIndex::end_inventory, nb::arg("segment"), nogil)
      .def("clear", &DirectoryIndex::clear, nogil)
      .def("set_serving", &DirectoryIndex::set_serving, nb::arg("segment"), nb::arg("serving"), nogil)
      .def("set_vouched", &DirectoryIndex::set_vouched, nb::arg("segment"), nb::arg("vouched"), nogil)
      .def("set_host", &DirectoryIndex::set_host, nb::arg("segment"), nb::arg("host"), nogil)
      .def(
          "exists",
          [](const DirectoryIndex& self, nb::bytes body) {
            return body_of([&] { return self.exists(body.data(), body.size()); });
          },
          nb::arg("body"))
      .def(
          "lookup",
          [](const DirectoryIndex& self, nb::bytes body) {
            return body_of([&] { return self.lookup(body.data(), body.size()); });
          },
          nb::arg("body"))
      .def(
          "place",
          [](const DirectoryIndex& self, nb::bytes body, const std::vector<uint32_t>& segments,
             uint64_t run_bytes) {
            return body_of([&] { return self.place(body.data(), body.size(), segments, run_bytes); });
          },
          nb::arg("body"), nb::arg("segments"), nb::arg("run_bytes"))
      .def("place_copies", &place_copies, nb::arg("body"), nb::arg("replicas"), nb::arg("stripes"),
           nb::arg("run_bytes"))
      .def("place_demand", &place_demand, nb::arg("body"), nb::arg("replicas") = 1)
      .def(
          "snapshot",
          [](DirectoryIndex& self, uint32_t segment, uint32_t entries_max) {
            return std::make_unique<DirectoryIndex::Snapshot>(self, segment, entries_max);
          },
          nb::arg("segment"), nb::arg("entries_max"), nb::keep_alive<0, 1>())
      .def("segment_usage", &segment_usage, nb::arg("segment"))
      .def("namespace_usage", &namespace_usage)
      .def("namespace_parts", &namespace_parts, nb::arg("ns"))
      .def("usage_of_namespace", &usage_of_namespace, nb::arg("ns"))
      .def("track_duplicates", &DirectoryIndex::track_duplicates, nb::arg("pages_max"), nogil)
      .def("take_duplicates", &take_duplicates, nb::arg("pages_max"))
      .def("vouched_holders", &vouched_holders, nb::arg("fingerprint"))
      .def("find", &find, nb::arg("fingerprint"))
      .def_prop_ro("entry_count", &DirectoryIndex::entry_count)
      .def_prop_ro("memory_bytes", &DirectoryIndex::memory_bytes);

  nb::class_<LiveEntries>(m, "LiveEntries")
      .def(nb::init<const DirectoryIndex&, uint32_t>(), nb::arg("index"), nb::arg("segment"),
           nb::keep_alive<1, 2>())
      .def(
          "keep",
          [](LiveEntries& self, nb::bytes groups) {
            const ReleasedGil nogil;
            return self.keep(groups.data(), groups.size());
          },
          nb::arg("groups"))
      .def("take", [](LiveEntries& self) { return body_of([&] { return self.take(); }); });
}

}  // namespace kvstore
