#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cstring>
#include <memory>
#include <system_error>
#include <variant>

#include "bindings.hpp"
#include "released_gil.hpp"
#include "segment/link/journal_link.hpp"
#include "segment/store_journal_source.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvstore {
namespace {

nb::bytes to_bytes(const std::vector<uint8_t>& data) { return nb::bytes(data.data(), data.size()); }

std::vector<uint8_t> to_vector(const nb::bytes& data) {
  const auto* p = static_cast<const uint8_t*>(data.data());
  return {p, p + data.size()};
}

LinkToken sixteen_bytes(const nb::bytes& data, const char* what) {
  LinkToken out;
  if (data.size() != out.size())
    throw nb::value_error((std::string(what) + " has 16 bytes, not " + std::to_string(data.size())).c_str());
  std::memcpy(out.data(), data.data(), out.size());
  return out;
}

// An object of Python's with the methods of `JournalSource` in kvstore/segment/journal_pump.py: models of a journal, in tests and
// simulations. Called with the GIL held.
class PythonJournalSource final : public JournalSource {
 public:
  explicit PythonJournalSource(nb::object source) : source_(std::move(source)) {}

  uint64_t last_seq() override { return nb::cast<uint64_t>(source_.attr("last_seq")); }
  std::optional<Journal::Batch> drain(size_t entries_max) override {
    const nb::object drained = source_.attr("journal_drain")(entries_max);
    if (drained.is_none()) return std::nullopt;
    const auto batch = nb::cast<nb::tuple>(drained);
    return Journal::Batch{nb::cast<uint64_t>(batch[0]), nb::cast<uint64_t>(batch[1]),
                          to_vector(nb::cast<nb::bytes>(batch[2]))};
  }
  void ack(uint64_t seq) override { source_.attr("journal_ack")(seq); }
  bool rewind(uint64_t seq) override { return nb::cast<bool>(source_.attr("journal_rewind")(seq)); }
  uint64_t begin_inventory() override { return nb::cast<uint64_t>(source_.attr("begin_inventory")()); }
  bool next_inventory_slice(size_t entries_max, std::vector<uint8_t>& groups) override {
    const auto slice = nb::cast<nb::tuple>(source_.attr("next_inventory_slice")(entries_max));
    const std::vector<uint8_t> more = to_vector(nb::cast<nb::bytes>(slice[0]));
    groups.insert(groups.end(), more.begin(), more.end());
    return nb::cast<bool>(slice[1]);
  }

 private:
  const nb::object source_;
};

struct Batch {
  uint64_t first_seq, last_seq;
  nb::bytes groups;
};

struct Chunk {
  uint64_t last_seq;
  nb::bytes groups;
  bool first, last;
};

// A pump with what it takes from. `store` is null where that is an object of Python's.
struct BoundPump {
  std::shared_ptr<JournalSource> source;
  std::shared_ptr<JournalPump> pump;
  std::shared_ptr<SegmentStore> store;
};

std::shared_ptr<BoundPump> make_pump(nb::object source, size_t batch_entries_max,
                                     size_t batches_in_flight_max) {
  auto bound = std::make_shared<BoundPump>();
  if (nb::isinstance<SegmentStore>(source)) {
    bound->store = nb::cast<std::shared_ptr<SegmentStore>>(source);
    bound->source = std::make_shared<StoreJournalSource>(bound->store);
  } else {
    bound->source = std::make_shared<PythonJournalSource>(std::move(source));
  }
  // The pump keeps its source.
  bound->pump =
      std::shared_ptr<JournalPump>(new JournalPump(*bound->source, batch_entries_max, batches_in_flight_max),
                                   [source_kept = bound->source](JournalPump* pump) { delete pump; });
  return bound;
}

std::variant<std::monostate, Batch, Chunk> next_message(BoundPump& bound) {
  const auto message = [&] {
    if (bound.store == nullptr) return bound.pump->next_message();
    ReleasedGil nogil;
    return bound.pump->next_message();
  }();
  if (!message) return std::monostate{};
  if (message->kind == JournalPump::Kind::kBatch)
    return Batch{message->first_seq, message->last_seq, to_bytes(message->groups)};
  return Chunk{message->last_seq, to_bytes(message->groups), message->first, message->last};
}

std::shared_ptr<JournalLink> make_link(const BoundPump& pump, std::string host, uint16_t port,
                                       std::string token, std::string name, const nb::bytes& cluster_id,
                                       const nb::bytes& link_token, uint64_t durable_seq, bool need_inventory,
                                       uint32_t heartbeat_interval_ms, uint32_t connect_timeout_ms,
                                       uint32_t silence_timeout_ms, uint32_t stall_timeout_ms) {
  if (pump.store == nullptr) throw nb::value_error("a link takes the pump of a SegmentStore");
  if (token.size() > wire::kTokenBytesMax || name.size() > wire::kNameBytesMax)
    throw nb::value_error("a token has at most 1024 bytes, a name 255");
  JournalLinkOptions options;
  options.host = std::move(host);
  options.port = port;
  options.link.token = std::move(token);
  options.link.name = std::move(name);
  options.link.cluster_id = sixteen_bytes(cluster_id, "cluster_id");
  options.link.link_token = sixteen_bytes(link_token, "link_token");
  options.link.durable_seq = durable_seq;
  options.link.need_inventory = need_inventory;
  options.link.heartbeat_interval = std::chrono::milliseconds(heartbeat_interval_ms);
  options.link.silence_timeout = std::chrono::milliseconds(silence_timeout_ms);
  options.connect_timeout = std::chrono::milliseconds(connect_timeout_ms);
  options.stall_timeout = std::chrono::milliseconds(stall_timeout_ms);
  try {
    return make_process_owned<JournalLink>(pump.store, pump.pump, options);
  } catch (const std::system_error& e) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(e.code().value(), e.what()).ptr());
  }
  throw nb::python_error();
}

nb::list take_refusals(JournalLink& link) {
  nb::list out;
  for (const LinkConversation::Refusal& refusal : link.take_refusals()) {
    // Whatever a master wrote: for people.
    const nb::object reason = nb::steal(PyUnicode_DecodeUTF8(
        refusal.reason.data(), static_cast<Py_ssize_t>(refusal.reason.size()), "replace"));
    out.append(nb::make_tuple(refusal.last_seq, refusal.entries, reason));
  }
  return out;
}

nb::object ended(const JournalLink& link) {
  const auto end = link.ended();
  if (!end) return nb::none();
  const nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(end->text.data(), static_cast<Py_ssize_t>(end->text.size()), "replace"));
  return nb::make_tuple(end->kind, text);
}

}  // namespace

void bind_link(nb::module_& m) {
  nb::exception<JournalProtocolError>(m, "JournalProtocolError");

  nb::enum_<JournalPump::State>(m, "PumpState")
      .value("DETACHED", JournalPump::State::kDetached)
      .value("INVENTORY", JournalPump::State::kInventory)
      .value("STREAMING", JournalPump::State::kStreaming);

  nb::class_<Batch>(m, "JournalBatch")
      .def(nb::new_([](uint64_t first_seq, uint64_t last_seq, nb::bytes groups) {
             return std::make_shared<Batch>(Batch{first_seq, last_seq, std::move(groups)});
           }),
           "first_seq"_a, "last_seq"_a, "groups"_a)
      .def_ro("first_seq", &Batch::first_seq)
      .def_ro("last_seq", &Batch::last_seq)
      .def_ro("groups", &Batch::groups)
      .def("__eq__",
           [](const Batch& a, const Batch& b) {
             return a.first_seq == b.first_seq && a.last_seq == b.last_seq && a.groups.equal(b.groups);
           })
      .def("__repr__", [](const Batch& b) {
        return "JournalBatch(first_seq=" + std::to_string(b.first_seq) +
               ", last_seq=" + std::to_string(b.last_seq) + ", groups=" + nb::repr(b.groups).c_str() + ")";
      });

  nb::class_<Chunk>(m, "InventoryChunk")
      .def(nb::new_([](uint64_t last_seq, nb::bytes groups, bool first, bool last) {
             return std::make_shared<Chunk>(Chunk{last_seq, std::move(groups), first, last});
           }),
           "last_seq"_a, "groups"_a, "first"_a, "last"_a)
      .def_ro("last_seq", &Chunk::last_seq)
      .def_ro("groups", &Chunk::groups)
      .def_ro("first", &Chunk::first)
      .def_ro("last", &Chunk::last)
      .def("__eq__",
           [](const Chunk& a, const Chunk& b) {
             return a.last_seq == b.last_seq && a.first == b.first && a.last == b.last &&
                    a.groups.equal(b.groups);
           })
      .def("__repr__", [](const Chunk& c) {
        return "InventoryChunk(last_seq=" + std::to_string(c.last_seq) +
               ", groups=" + nb::repr(c.groups).c_str() + ", first=" + (c.first ? "True" : "False") +
               ", last=" + (c.last ? "True" : "False") + ")";
      });

  nb::class_<BoundPump>(m, "JournalPump")
      .def(nb::new_(&make_pump), "source"_a, nb::kw_only(),
           "batch_entries_max"_a = JournalPump::kBatchEntriesMax,
           "batches_in_flight_max"_a = JournalPump::kBatchesInFlightMax)
      .def_prop_ro("state", [](BoundPump& b) { return b.pump->state(); })
      .def_prop_ro("sent_seq", [](BoundPump& b) { return b.pump->sent_seq(); })
      .def_prop_ro("durable_seq", [](BoundPump& b) { return b.pump->durable_seq(); })
      .def_prop_ro("window_full", [](BoundPump& b) { return b.pump->window_full(); })
      .def_prop_ro("inventories_sent", [](BoundPump& b) { return b.pump->inventories_sent(); })
      .def_prop_ro("gaps", [](BoundPump& b) { return b.pump->gaps(); })
      .def_prop_rw(
          "entries_refused", [](BoundPump& b) { return b.pump->entries_refused(); },
          [](BoundPump& b, uint64_t entries) { b.pump->count_refused(entries - b.pump->entries_refused()); })
      .def(
          "attached",
          [](BoundPump& b, uint64_t durable_seq, bool need_inventory) {
            b.pump->attached(durable_seq, need_inventory);
          },
          "durable_seq"_a, "need_inventory"_a)
      .def("detached", [](BoundPump& b) { b.pump->detached(); })
      .def("inventory_requested", [](BoundPump& b) { b.pump->inventory_requested(); })
      .def("next_message", &next_message)
      .def("acked", [](BoundPump& b, uint64_t durable_seq) { b.pump->acked(durable_seq); }, "durable_seq"_a);

  nb::class_<JournalLink>(m, "JournalLink")
      .def(nb::new_(&make_link), "pump"_a, nb::kw_only(), "host"_a, "port"_a, "token"_a, "name"_a,
           "cluster_id"_a, "link_token"_a, "durable_seq"_a, "need_inventory"_a, "heartbeat_interval_ms"_a,
           "connect_timeout_ms"_a = 3000, "silence_timeout_ms"_a = 4000, "stall_timeout_ms"_a = 4000)
      .def_prop_ro("event_fd", &JournalLink::event_fd)
      .def("events_seen", &JournalLink::events_seen)
      .def_prop_ro("linked", &JournalLink::linked)
      .def_prop_ro("ended", &ended)
      .def("take_refusals", &take_refusals)
      .def_prop_ro("heartbeats_sent", &JournalLink::heartbeats_sent)
      .def("stop", &JournalLink::stop, nb::call_guard<ReleasedGil>());
}

}  // namespace kvstore
