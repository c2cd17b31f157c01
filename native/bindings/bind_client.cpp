// SharedBuffer, Pieces and PageClient. Arguments are checked and turned into views with the GIL held; each blocking call then
// releases it once (fetch twice: it allocates its results in between).
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <system_error>

#include "bindings.hpp"
#include "builtin/builtin.hpp"
#include "client/page_client.hpp"
#include "client/page_plan.hpp"
#include "client/shared_buffer.hpp"
#include "interruptible_call.hpp"

namespace nb = nanobind;

namespace kvstore {
namespace {

[[noreturn]] void value_error(const std::string& what) { throw nb::value_error(what.c_str()); }

// ---- SharedBuffer ----

int shared_buffer_view(PyObject* self, Py_buffer* view, int flags) {
  const auto* buffer = nb::inst_ptr<SharedBuffer>(nb::handle(self));
  if (!buffer->is_mapped_here()) {
    PyErr_SetString(PyExc_BufferError,
                    "a SharedBuffer belongs to the process that made it, not to a forked child");
    view->obj = nullptr;
    return -1;
  }
  return PyBuffer_FillInfo(view, self, buffer->data(), static_cast<Py_ssize_t>(buffer->size_bytes()), 0,
                           flags);
}

PyType_Slot shared_buffer_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(shared_buffer_view)},
    {0, nullptr},
};

void make_shared_buffer(SharedBuffer* self, size_t size_bytes) {
  std::string no_memory;
  {
    ReleasedGil nogil;  // it touches every page
    try {
      new (self) SharedBuffer(size_bytes);
    } catch (const std::system_error& e) {
      no_memory = e.what();
    }
  }
  if (no_memory.empty()) return;
  PyErr_SetString(PyExc_MemoryError, no_memory.c_str());
  throw nb::python_error();
}

// ---- Pieces ----

// n bytes, not yet written.
nb::bytes fresh_bytes(size_t n) {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(n));
  if (bytes == nullptr) throw nb::python_error();
  return nb::steal<nb::bytes>(bytes);
}
uint8_t* mutable_data(const nb::bytes& bytes) {
  return reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(bytes.ptr()));
}

// The 64-bit items of a contiguous buffer: an array of 8-byte items, or plain bytes that hold them.
template <typename T>
std::vector<T> items_of(nb::handle object, const char* what) {
  static_assert(sizeof(T) == 8, "descriptors are 64 bits wide");
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_ND) != 0) throw nb::python_error();
  const bool fits = (view.itemsize == 8 || view.itemsize == 1) && view.len % 8 == 0;
  std::vector<T> items(fits ? static_cast<size_t>(view.len) / 8 : 0);
  if (!items.empty()) std::memcpy(items.data(), view.buf, items.size() * 8);
  PyBuffer_Release(&view);
  if (!fits) value_error(std::string(what) + " must be a contiguous buffer of 64-bit integers");
  return items;
}

using PlanItem = std::tuple<uint64_t, int64_t, uint64_t>;

Pieces::Plan strided(const std::vector<std::vector<PlanItem>>& plan) {
  Pieces::Plan shards;
  for (const auto& shard : plan) {
    shards.emplace_back();
    for (const auto& [base, stride, size_bytes] : shard) shards.back().push_back({base, stride, size_bytes});
  }
  return shards;
}

Pieces affine(const std::vector<std::vector<PlanItem>>& plan, nb::handle indices) {
  return Pieces::affine(strided(plan), items_of<int64_t>(indices, "indices"));
}

Pieces from_pointers(nb::handle pointers, nb::handle sizes, size_t pieces_per_entry) {
  return Pieces::from_pointers(items_of<uint64_t>(pointers, "pointers"), items_of<uint64_t>(sizes, "sizes"),
                               pieces_per_entry);
}

// The pieces of a list of (address, size_bytes); None where any value is something else, or what no object can be.
nb::object from_tuples(const nb::object& values) {
  const nb::object items = nb::steal(PySequence_Fast(values.ptr(), "values come in a sequence"));
  if (!items.is_valid()) throw nb::python_error();
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  PyObject** const item = PySequence_Fast_ITEMS(items.ptr());
  std::vector<uint64_t> numbers[2];
  for (auto& column : numbers) column.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (!PyTuple_CheckExact(item[i]) || PyTuple_GET_SIZE(item[i]) != 2) return nb::none();
    for (Py_ssize_t column = 0; column < 2; ++column) {
      PyObject* const number = PyTuple_GET_ITEM(item[i], column);
      if (!PyLong_CheckExact(number)) return nb::none();
      const unsigned long long value = PyLong_AsUnsignedLongLong(number);
      if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return nb::none();
      }
      if (value == 0 || (column == 1 && value > wire::kObjectBytesMax)) return nb::none();
      numbers[column].push_back(value);
    }
  }
  return nb::cast(Pieces::from_pointers(std::move(numbers[0]), std::move(numbers[1]), 1));
}

// ---- PageClient ----

KeyBlock call_keys(const PageClient& client, int handle, uint16_t pool, const nb::bytes& shards,
                   const nb::bytes& hashes) {
  if (!client.valid_handle(handle))
    value_error("namespace handle " + std::to_string(handle) + " was never opened");
  if (shards.size() == 0 || shards.size() % kShardBytes != 0)
    value_error("shards come in " + std::to_string(kShardBytes) + " bytes each, at least one of them");
  if (hashes.size() % kHashBytes != 0)
    value_error("hashes come in " + std::to_string(kHashBytes) + " bytes each");
  const size_t shard_count = shards.size() / kShardBytes, key_count = hashes.size() / kHashBytes;
  if (shard_count > wire::kShardsMax || key_count > wire::kKeysMax ||
      shard_count * key_count > wire::kEntriesMax)
    value_error(std::to_string(key_count) + " keys x " + std::to_string(shard_count) +
                " shards are over the cap of " + std::to_string(wire::kKeysMax) + " keys, " +
                std::to_string(wire::kShardsMax) + " shards or " + std::to_string(wire::kEntriesMax) +
                " entries: split the batch");
  KeyBlock keys;
  keys.pool = pool;
  keys.shard_count = static_cast<uint32_t>(shard_count);
  keys.key_count = static_cast<uint32_t>(key_count);
  keys.shards = static_cast<const uint8_t*>(shards.data());
  keys.hashes = static_cast<const uint8_t*>(hashes.data());
  return keys;
}

void check_memory(const KeyBlock& keys, const Pieces& memory) {
  if (memory.entry_count() != keys.entry_count())
    value_error("memory describes " + std::to_string(memory.entry_count()) +
                " entries, the keys and shards make " + std::to_string(keys.entry_count()));
  if (memory.shard_count() != 0 && memory.shard_count() != keys.shard_count)
    value_error("memory describes " + std::to_string(memory.shard_count()) + " shards, the call has " +
                std::to_string(keys.shard_count));
}

nb::bytes exists(PageClient& client, int handle, uint16_t pool, nb::bytes shards, nb::bytes hashes,
                 uint32_t pin_ms, int64_t deadline_ms) {
  const Deadline deadline = Deadline::after_ms(deadline_ms);
  const KeyBlock keys = call_keys(client, handle, pool, shards, hashes);
  nb::bytes statuses = fresh_bytes(keys.entry_count());
  uint8_t* out = mutable_data(statuses);
  if (keys.key_count == 0) return statuses;
  interruptibly(deadline, [&](const Deadline& until) { client.exists(handle, keys, pin_ms, until, out); });
  return statuses;
}

nb::bytes get(PageClient& client, int handle, uint16_t pool, nb::bytes shards, nb::bytes hashes,
              const Pieces& memory, int64_t deadline_ms, uint32_t stall_ms) {
  Progress progress(stall_ms);
  Deadline deadline = Deadline::after_ms(deadline_ms);
  if (stall_ms > 0) deadline = deadline.while_moving(progress);
  const KeyBlock keys = call_keys(client, handle, pool, shards, hashes);
  check_memory(keys, memory);
  nb::bytes statuses = fresh_bytes(keys.entry_count());
  uint8_t* out = mutable_data(statuses);
  interruptibly(deadline, [&](const Deadline& until) { client.get(handle, keys, memory, until, out); });
  return statuses;
}

wire::KeepWish wish_of(int intent, uint32_t ttl_ms) {
  if (intent < 0 || intent > static_cast<int>(wire::Intent::kDemote))
    value_error("intent is 0 (normal), 1 (retain) or 2 (demote), not " + std::to_string(intent));
  return {static_cast<wire::Intent>(intent), ttl_ms};
}

nb::bytes put(PageClient& client, int handle, uint16_t pool, nb::bytes shards, nb::bytes hashes,
              const Pieces& memory, int64_t deadline_ms, bool ack_committed, uint32_t depth, nb::object texts,
              int intent, uint32_t ttl_ms, uint32_t stall_ms, uint32_t replicas) {
  Progress progress(stall_ms);
  Deadline deadline = Deadline::after_ms(deadline_ms);
  if (stall_ms > 0) deadline = deadline.while_moving(progress);
  const KeyBlock keys = call_keys(client, handle, pool, shards, hashes);
  check_memory(keys, memory);
  std::vector<std::string> text_copies;  // the list may change while the GIL is released
  std::vector<std::string_view> text_views;
  if (replicas == 0 || replicas > wire::kReplicasMax)
    value_error("replicas is a number from 1 to 4, not " + std::to_string(replicas));
  PutOptions options{ack_committed, depth, nullptr, wish_of(intent, ttl_ms), replicas};
  if (!texts.is_none()) {
    text_copies = nb::cast<std::vector<std::string>>(texts);
    if (text_copies.size() != keys.key_count)
      value_error(std::to_string(text_copies.size()) + " texts for " + std::to_string(keys.key_count) +
                  " keys");
    text_views.assign(text_copies.begin(), text_copies.end());
    options.texts = &text_views;
  }
  nb::bytes statuses = fresh_bytes(keys.entry_count());
  uint8_t* out = mutable_data(statuses);
  interruptibly(deadline,
                [&](const Deadline& until) { client.put(handle, keys, memory, options, until, out); });
  return statuses;
}

nb::bytes remove(PageClient& client, int handle, uint16_t pool, nb::bytes shards, nb::bytes hashes,
                 int64_t deadline_ms) {
  const Deadline deadline = Deadline::after_ms(deadline_ms);
  const KeyBlock keys = call_keys(client, handle, pool, shards, hashes);
  nb::bytes statuses = fresh_bytes(keys.entry_count());
  uint8_t* out = mutable_data(statuses);
  if (keys.key_count == 0) return statuses;
  interruptibly(deadline, [&](const Deadline& until) { client.remove(handle, keys, until, out); });
  return statuses;
}

nb::bytes keep(PageClient& client, int handle, uint16_t pool, nb::bytes shards, nb::bytes hashes, int intent,
               uint32_t ttl_ms, int64_t deadline_ms) {
  const Deadline deadline = Deadline::after_ms(deadline_ms);
  const wire::KeepWish wish = wish_of(intent, ttl_ms);
  const KeyBlock keys = call_keys(client, handle, pool, shards, hashes);
  nb::bytes statuses = fresh_bytes(keys.entry_count());
  uint8_t* out = mutable_data(statuses);
  if (keys.key_count == 0) return statuses;
  interruptibly(deadline, [&](const Deadline& until) { client.keep(handle, keys, wish, until, out); });
  return statuses;
}

nb::list fetch(PageClient& client, int handle, uint16_t pool, nb::bytes shards, nb::bytes hashes,
               int64_t deadline_ms, uint64_t bytes_max) {
  const Deadline deadline = Deadline::after_ms(deadline_ms);
  const KeyBlock keys = call_keys(client, handle, pool, shards, hashes);
  nb::list results;
  if (keys.key_count == 0) return results;
  std::vector<uint8_t> statuses(keys.entry_count());
  const std::vector<uint32_t> lengths = interruptibly(deadline, [&](const Deadline& until) {
    return client.fetch_lengths(handle, keys, bytes_max, until, statuses.data());
  });
  std::vector<nb::object> fresh(lengths.size());
  std::vector<uint64_t> pointers(lengths.size(), 0);
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] == 0) continue;
    nb::bytes bytes = fresh_bytes(lengths[i]);
    pointers[i] = reinterpret_cast<uint64_t>(mutable_data(bytes));
    fresh[i] = std::move(bytes);
  }
  interruptibly(deadline, [&](const Deadline& until) {
    client.fetch(handle, keys, lengths, pointers, until, statuses.data());
  });
  for (size_t i = 0; i < lengths.size(); ++i) {
    const bool found = lengths[i] > 0 && statuses[i] == static_cast<uint8_t>(wire::Status::kOk);
    if (found)
      results.append(fresh[i]);
    else
      results.append(nb::none());
  }
  return results;
}

nb::dict counters(const PageClient& client) {
  nb::dict all;
  for (const auto& [name, value] : client.counters().all()) all[name.c_str()] = value;
  return all;
}

nb::list transport_counters() {
  nb::list all;
  for (const TransportType& type : builtin_transports())
    for (const CounterSpec& counter : counters_of(type))
      all.append(nb::make_tuple(counter.name, counter.help));
  return all;
}

nb::list troubles(const PageClient& client) {
  nb::list all;
  for (const PeerTroubles::Record& r : client.counters().troubles.all())
    all.append(nb::make_tuple(r.subject, PeerTroubles::name(r.trouble), r.text, r.count));
  return all;
}

const char* state_name(wire::SegmentState state) {
  switch (state) {
    case wire::SegmentState::kLive:
      return "live";
    case wire::SegmentState::kSuspect:
      return "suspect";
    case wire::SegmentState::kDraining:
      return "draining";
    case wire::SegmentState::kGone:
      return "gone";
  }
  return "unknown";
}

nb::list segment_map(const PageClient& client) {
  nb::list all;
  for (const PageClient::SegmentView& segment : client.segments()) {
    const SegmentRecord& r = segment.record;
    nb::dict d;
    d["index"] = r.index;
    d["state"] = state_name(r.state);
    d["segment_id"] = nb::bytes(r.segment_id.data(), r.segment_id.size());
    d["pool_id"] = nb::bytes(r.pool_id.data(), r.pool_id.size());
    d["capacity_bytes"] = r.capacity_bytes;
    d["used_bytes"] = r.used_bytes;
    d["host"] = r.host;
    d["tcp_port"] = r.tcp_port;
    d["unix_path"] = r.unix_path;
    d["usable"] = segment.usable;
    d["transport"] = segment.transport;
    all.append(d);
  }
  return all;
}

void make_client(PageClient* self, const std::vector<std::pair<std::string, uint16_t>>& masters,
                 const std::string& token, const std::string& name, size_t connections_per_peer,
                 size_t copy_threads, int connect_timeout_ms, int64_t backoff_ms_min, int64_t backoff_ms_max,
                 uint64_t run_bytes, size_t location_cache_entries, const nb::kwargs& transport_options) {
  // Bounds are those of kvstore_client/options.py, which has checked the values.
  std::vector<PeerAddress> addresses;
  for (const auto& [host, port] : masters) addresses.push_back({host, port, ""});
  new (self)
      PageClient(std::move(addresses), {token, name, connections_per_peer, copy_threads, connect_timeout_ms,
                                        backoff_ms_min, backoff_ms_max, run_bytes, location_cache_entries,
                                        builtin_transports(), option_texts(transport_options)});
}

std::pair<int, int> open_namespace(PageClient& client, nb::bytes identity, const std::string& name,
                                   int64_t deadline_ms) {
  const Deadline deadline = Deadline::after_ms(deadline_ms);
  if (identity.size() == 0 || identity.size() > wire::kIdentityBytesMax)
    value_error("identity: between 1 byte and 64 KiB");
  if (name.size() > wire::kNameBytesMax) value_error("name: at most 255 bytes");
  const std::string copy(static_cast<const char*>(identity.data()), identity.size());
  const std::pair<wire::Status, int> opened = interruptibly(
      deadline, [&](const Deadline& until) { return client.open_namespace(copy, name, until); });
  if (opened.second < 0)
    value_error("over the cap of " + std::to_string(kNamespaceHandlesMax) +
                " namespaces a client: close one, or use another client");
  return {static_cast<int>(opened.first), opened.second};
}

void check_handle(const PageClient& client, int handle) {
  if (!client.valid_handle(handle))
    value_error("namespace handle " + std::to_string(handle) + " was never opened");
}

}  // namespace

void bind_client(nb::module_& m) {
  m.def(
      "end_other_threads_calls",
      [](int timeout_ms) {
        return Cancellation::end_other_threads_calls(std::chrono::milliseconds(timeout_ms));
      },
      nb::arg("timeout_ms"), nb::call_guard<ReleasedGil>());

  nb::class_<SharedBuffer>(m, "SharedBuffer", nb::type_slots(shared_buffer_slots))
      .def("__init__", &make_shared_buffer, nb::arg("size_bytes"))
      .def_prop_ro("address", [](const SharedBuffer& b) { return reinterpret_cast<uint64_t>(b.data()); })
      .def_prop_ro("size_bytes", &SharedBuffer::size_bytes)
      .def_prop_ro("fd", &SharedBuffer::fd);

  nb::class_<Pieces>(m, "Pieces")
      .def_static("affine", &affine, nb::arg("plan"), nb::arg("indices"))
      .def_static("from_pointers", &from_pointers, nb::arg("pointers"), nb::arg("sizes"),
                  nb::arg("pieces_per_entry"))
      .def_static("from_tuples", &from_tuples, nb::arg("values"))
      .def_prop_ro("entry_count", &Pieces::entry_count)
      .def_prop_ro("total_bytes", &Pieces::total_bytes);

  // The slots lie at an address, as a tensor tells it: to make any other view of one takes longer than all the rest.
  nb::class_<PagePlan>(m, "PagePlan")
      .def(
          "__init__",
          [](PagePlan* self, const std::vector<std::vector<PlanItem>>& plan, int64_t page_size,
             int64_t slot_count) { new (self) PagePlan(strided(plan), page_size, slot_count); },
          nb::arg("plan"), nb::arg("page_size"), nb::arg("slot_count"))
      .def(
          "check",
          [](const PagePlan& plan, uint64_t address, size_t count, size_t key_count) {
            plan.check(reinterpret_cast<const int64_t*>(address), count, key_count);
          },
          nb::arg("address"), nb::arg("count"), nb::arg("key_count"))
      .def(
          "pieces",
          [](const PagePlan& plan, uint64_t address, size_t count, size_t key_count) {
            return plan.pieces(reinterpret_cast<const int64_t*>(address), count, key_count);
          },
          nb::arg("address"), nb::arg("count"), nb::arg("key_count"));

  m.def("trouble_kinds", [] {
    std::vector<std::string> kinds;
    for (size_t i = 0; i < static_cast<size_t>(Trouble::kCount); ++i)
      kinds.emplace_back(PeerTroubles::name(static_cast<Trouble>(i)));
    return kinds;
  });
  m.def("transport_options", [] { return declared_options(builtin_transports()); });
  m.def("transport_counters", &transport_counters);

  nb::class_<PageClient>(m, "PageClient")
      .def("__init__", &make_client, nb::arg("masters"), nb::kw_only(), nb::arg("token") = "",
           nb::arg("name") = "", nb::arg("connections_per_peer") = 2, nb::arg("copy_threads") = 2,
           nb::arg("connect_timeout_ms") = 250, nb::arg("backoff_ms_min") = 50,
           nb::arg("backoff_ms_max") = 1000, nb::arg("run_bytes") = 4194304,
           nb::arg("location_cache_entries") = 262144, nb::arg("transport_options"))
      .def_prop_ro("transport_refusals", &PageClient::transport_refusals)
      .def("open_namespace", &open_namespace, nb::arg("identity"), nb::arg("name"), nb::arg("deadline_ms"))
      .def(
          "bump_namespace",
          [](PageClient& client, int handle, int64_t deadline_ms) {
            const Deadline deadline = Deadline::after_ms(deadline_ms);
            check_handle(client, handle);
            return static_cast<int>(interruptibly(
                deadline, [&](const Deadline& until) { return client.bump_namespace(handle, until); }));
          },
          nb::arg("handle"), nb::arg("deadline_ms"))
      .def(
          "restore_namespace",
          [](PageClient& client, int handle, nb::bytes identity, const std::string& name) {
            client.restore_namespace(
                handle, std::string(static_cast<const char*>(identity.data()), identity.size()), name);
          },
          nb::arg("handle"), nb::arg("identity"), nb::arg("name"))
      .def("close_namespace", &PageClient::close_namespace, nb::arg("handle"))
      .def(
          "namespace_state",
          [](const PageClient& client, int handle) {
            const NamespaceHandles::State state = client.namespace_state(handle);
            return nb::make_tuple(state.open ? nb::bytes(state.ns.data(), state.ns.size()) : nb::bytes("", 0),
                                  state.epoch);
          },
          nb::arg("handle"))
      .def("exists", &exists, nb::arg("handle"), nb::arg("pool"), nb::arg("shards"), nb::arg("hashes"),
           nb::arg("pin_ms"), nb::arg("deadline_ms"))
      .def("get", &get, nb::arg("handle"), nb::arg("pool"), nb::arg("shards"), nb::arg("hashes"),
           nb::arg("memory"), nb::arg("deadline_ms"), nb::arg("stall_ms") = 0)
      .def("put", &put, nb::arg("handle"), nb::arg("pool"), nb::arg("shards"), nb::arg("hashes"),
           nb::arg("memory"), nb::arg("deadline_ms"), nb::arg("ack_committed") = true, nb::arg("depth") = 0,
           nb::arg("texts") = nb::none(), nb::arg("intent") = 0, nb::arg("ttl_ms") = 0,
           nb::arg("stall_ms") = 0, nb::arg("replicas") = 1)
      .def("fetch", &fetch, nb::arg("handle"), nb::arg("pool"), nb::arg("shards"), nb::arg("hashes"),
           nb::arg("deadline_ms"), nb::arg("bytes_max"))
      .def("remove", &remove, nb::arg("handle"), nb::arg("pool"), nb::arg("shards"), nb::arg("hashes"),
           nb::arg("deadline_ms"))
      .def("keep", &keep, nb::arg("handle"), nb::arg("pool"), nb::arg("shards"), nb::arg("hashes"),
           nb::arg("intent"), nb::arg("ttl_ms"), nb::arg("deadline_ms"))
      .def("register_fd", &PageClient::register_memory, nb::arg("address"), nb::arg("size_bytes"),
           nb::arg("fd"))
      .def(
          "register_memory",
          [](PageClient& client, uint64_t address, uint64_t size_bytes) {
            return client.register_memory(address, size_bytes, -1);
          },
          nb::arg("address"), nb::arg("size_bytes"))
      .def("unregister", &PageClient::unregister, nb::arg("address"))
      .def("counters", &counters)
      .def("troubles", &troubles)
      .def_prop_ro("trouble_changes",
                   [](const PageClient& client) { return client.counters().troubles.changes(); })
      .def("segment_map", &segment_map)
      .def("close", &PageClient::close, nb::call_guard<ReleasedGil>());
}

}  // namespace kvstore
