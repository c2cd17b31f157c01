#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <system_error>
#include <tuple>

#include "bindings.hpp"
#include "builtin/builtin.hpp"
#include "released_gil.hpp"
#include "segment/data_port/server.hpp"
#include "segment/kept_pool.hpp"
#include "segment/segment_store.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvstore {
namespace {

nb::bytes to_bytes(const std::vector<uint8_t>& data) { return nb::bytes(data.data(), data.size()); }

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

// Runs without the GIL; a refused pool becomes MemoryError and a system error OSError(errno, text).
template <typename Work>
auto without_gil(Work&& work) {
  try {
    ReleasedGil nogil;
    return work();
  } catch (const PoolLimitError& e) {
    PyErr_SetString(PyExc_MemoryError, e.what());
  } catch (const std::system_error& e) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(e.code().value(), e.what()).ptr());
  }
  throw nb::python_error();
}

std::shared_ptr<SegmentStore> make_store(
    uint64_t capacity_bytes, nb::bytes pool_id, std::optional<uint64_t> free_ahead_bytes,
    std::string eviction_policy, double pinned_fraction_max, uint64_t journal_entries_max, bool lock_memory,
    std::string pool_path, std::string huge_pages, std::vector<uint32_t> numa_nodes,
    double retained_fraction_max, double retained_namespace_fraction_max, nb::bytes segment_id,
    bool empty_pool, bool verify_pool, std::shared_ptr<PoolProgress> progress, uint64_t writing_bytes_max,
    uint64_t held_bytes_max, uint64_t registered_bytes_max, uint32_t registered_buffers_max,
    uint64_t body_bytes_max, double session_share_max, std::string disk_path, uint64_t disk_capacity_bytes,
    uint32_t disk_threads, uint32_t disk_admit_uses, uint32_t disk_promote_hits, uint32_t disk_wait_ms,
    uint32_t disk_slow_ms, uint64_t disk_buffer_bytes_max, bool tell_all) {
  SegmentStoreOptions options;
  options.capacity_bytes = capacity_bytes;
  options.pool_id = exactly<16>(pool_id, "pool_id");
  if (free_ahead_bytes) options.free_ahead_bytes = *free_ahead_bytes;
  options.eviction_policy = std::move(eviction_policy);
  options.pinned_fraction_max = pinned_fraction_max;
  options.journal_entries_max = journal_entries_max;
  options.pool.path = std::move(pool_path);
  options.pool.huge_pages = huge_pages_of(huge_pages);
  options.pool.numa_nodes = std::move(numa_nodes);
  options.pool.lock_memory = lock_memory;
  options.retained_fraction_max = retained_fraction_max;
  options.retained_namespace_fraction_max = retained_namespace_fraction_max;
  if (segment_id.size() != 0) options.segment_id = exactly<16>(segment_id, "segment_id");
  options.empty_pool = empty_pool;
  options.verify_pool = verify_pool;
  options.progress = std::move(progress);
  options.budgets = {writing_bytes_max,      held_bytes_max, registered_bytes_max,
                     registered_buffers_max, body_bytes_max, session_share_max};
  options.disk.path = std::move(disk_path);
  options.disk.capacity_bytes = disk_capacity_bytes;
  options.disk.read_threads = disk_threads;
  options.disk.admit_uses = disk_admit_uses;
  options.disk.promote_hits = disk_promote_hits;
  options.disk.wait_ms = disk_wait_ms;
  options.disk.slow_ms = disk_slow_ms;
  options.disk.read_bytes_max = disk_buffer_bytes_max;
  options.tell_all = tell_all;
  return without_gil([&] { return make_process_owned<SegmentStore>(options); });
}

nb::list budget_usage(SegmentStore& store) {
  nb::list out;
  for (const Budget::Usage& b : without_gil([&] { return store.budget_usage(); }))
    out.append(nb::make_tuple(b.name, b.used, b.limit, b.session_limit, b.refused));
  return out;
}

nb::object drain(SegmentStore& store, size_t entries_max) {
  const auto batch = without_gil([&] { return store.journal().drain(entries_max); });
  if (!batch) return nb::none();
  return nb::make_tuple(batch->first_seq, batch->last_seq, to_bytes(batch->groups));
}

// The whole of it, in slices.
nb::tuple inventory(SegmentStore& store, size_t entries_max) {
  std::vector<std::vector<uint8_t>> chunks;
  const uint64_t last_seq = without_gil([&] {
    SegmentStore::Inventory left = store.begin_inventory();
    for (bool done = false; !done;) {
      std::vector<uint8_t> groups;
      done = store.inventory_slice(left, std::max<size_t>(entries_max, 1), groups);
      if (!groups.empty()) chunks.push_back(std::move(groups));
    }
    return left.last_seq;
  });
  nb::list out;
  for (const auto& chunk : chunks) out.append(to_bytes(chunk));
  return nb::make_tuple(last_seq, out);
}

nb::tuple hottest(SegmentStore& store, std::optional<std::tuple<uint32_t, uint64_t, uint32_t>> after,
                  size_t entries_max) {
  SegmentStore::RankWalk walk;
  if (after) {
    walk.begun = true;
    std::tie(walk.since, walk.rank, walk.slot) = *after;
  }
  std::vector<uint8_t> groups;
  const bool last =
      without_gil([&] { return store.hottest(walk, std::max<size_t>(entries_max, 1), groups); });
  return nb::make_tuple(to_bytes(groups), nb::make_tuple(walk.since, walk.rank, walk.slot), last);
}

nb::dict pool_content(SegmentStore& store) {
  const PoolContent& content = store.pool_content();
  nb::dict dropped;
  for (uint8_t reason = 0; reason < PoolScan::kReasons; ++reason)
    dropped[PoolScan::name(static_cast<PoolScan::Reason>(reason))] = content.dropped[reason];
  nb::dict out;
  out["warm"] = content.warm;
  out["fresh_reason"] = content.fresh_reason;
  out["objects"] = content.objects;
  out["object_bytes"] = content.object_bytes;
  out["scanned_bytes"] = content.scanned_bytes;
  out["scan_seconds"] = content.scan_seconds;
  out["needs_inventory"] = content.needs_inventory;
  out["dropped"] = dropped;
  return out;
}

std::vector<NamespaceId> namespace_ids(const nb::list& items) {
  std::vector<NamespaceId> ids;
  for (nb::handle item : items)
    ids.push_back(exactly<kNamespaceBytes>(nb::cast<nb::bytes>(item), "a namespace id"));
  return ids;
}

nb::list namespaces(SegmentStore& store) {
  nb::list out;
  for (const NamespaceId& ns : without_gil([&] { return store.namespaces(); }))
    out.append(nb::bytes(ns.data(), ns.size()));
  return out;
}

void set_namespaces(SegmentStore& store, const nb::list& current, const nb::list& known) {
  const auto current_ids = namespace_ids(current), known_ids = namespace_ids(known);
  without_gil([&] { store.set_namespaces(current_ids, known_ids); });
}

// (limit in bytes, ids of namespaces) each.
void set_quotas(SegmentStore& store, const nb::list& limits) {
  std::vector<QuotaLimit> quotas;
  for (nb::handle item : limits) {
    const auto limit = nb::cast<nb::tuple>(item);
    quotas.push_back({nb::cast<uint64_t>(limit[0]), namespace_ids(nb::cast<nb::list>(limit[1]))});
  }
  without_gil([&] { store.set_quotas(quotas); });
}

wire::KeepWish wish_of(int intent, uint32_t ttl_ms) {
  if (intent < 0 || intent > static_cast<int>(wire::Intent::kDemote))
    throw nb::value_error("intent is 0 (normal), 1 (retain) or 2 (demote)");
  return {static_cast<wire::Intent>(intent), ttl_ms};
}

nb::tuple keep_objects(SegmentStore& store, nb::bytes ns, nb::bytes fingerprints, int intent,
                       uint32_t ttl_ms) {
  if (fingerprints.size() % kFingerprintBytes != 0)
    throw nb::value_error("fingerprints come in 16 bytes each");
  const NamespaceId id = exactly<kNamespaceBytes>(ns, "a namespace id");
  const wire::KeepWish wish = wish_of(intent, ttl_ms);
  std::vector<Fingerprint> fps(fingerprints.size() / kFingerprintBytes);
  if (!fps.empty()) std::memcpy(fps.data(), fingerprints.data(), fingerprints.size());
  const auto counts = without_gil([&] { return store.keep_objects(id, fps, wish); });
  return nb::make_tuple(counts.kept, counts.refused, counts.missing);
}

nb::bytes drop_objects(SegmentStore& store, nb::bytes ns, nb::bytes fingerprints) {
  if (fingerprints.size() % kFingerprintBytes != 0)
    throw nb::value_error("fingerprints come in 16 bytes each");
  const NamespaceId id = exactly<kNamespaceBytes>(ns, "a namespace id");
  std::vector<Fingerprint> fps(fingerprints.size() / kFingerprintBytes);
  if (!fps.empty()) std::memcpy(fps.data(), fingerprints.data(), fingerprints.size());
  const SegmentStore::Statuses statuses = without_gil([&] { return store.drop_objects(id, fps); });
  return nb::bytes(reinterpret_cast<const char*>(statuses.data()), statuses.size());
}

nb::tuple keep_namespace(SegmentStore& store, nb::bytes ns, int intent, uint32_t ttl_ms) {
  const NamespaceId id = exactly<kNamespaceBytes>(ns, "a namespace id");
  const wire::KeepWish wish = wish_of(intent, ttl_ms);
  const auto counts = without_gil([&] { return store.keep_namespace(id, wish); });
  return nb::make_tuple(counts.kept, counts.refused, counts.missing);
}

nb::tuple retention(SegmentStore& store) {
  const auto [accounts, limits] = without_gil([&] { return store.retention(); });
  nb::list out;
  for (const Retention::Account& a : accounts)
    out.append(nb::make_tuple(nb::bytes(a.ns.data(), a.ns.size()), a.retained_bytes, a.retained_objects,
                              a.demoted_objects, a.over_budget, a.demotions_heeded));
  return nb::make_tuple(limits.namespace_bytes_max, out);
}

std::shared_ptr<DataServer> make_server(std::shared_ptr<SegmentStore> store, std::string tcp_host,
                                        uint16_t tcp_port, std::string unix_path,
                                        std::vector<std::string> tokens, uint32_t connections_max,
                                        uint32_t ungreeted_max, uint32_t idle_timeout_ms,
                                        uint32_t stall_timeout_ms, const nb::kwargs& transport_options) {
  DataServerOptions options;
  options.tcp_host = std::move(tcp_host);
  options.tcp_port = tcp_port;
  options.unix_path = std::move(unix_path);
  options.tokens = std::move(tokens);
  options.connections_max = connections_max;
  options.ungreeted_max = ungreeted_max;
  options.idle_timeout_ms = idle_timeout_ms;
  options.stall_timeout_ms = stall_timeout_ms;
  options.extensions = builtin_extensions();
  options.extension_options = option_texts(transport_options);
  return without_gil([&] { return make_process_owned<DataServer>(std::move(store), options); });
}

}  // namespace

void bind_segment(nb::module_& m) {
  const auto released = nb::call_guard<ReleasedGil>();
  nb::exception<PoolPlaceError>(m, "PoolPlaceError", PyExc_RuntimeError);
  nb::exception<PoolRefusedError>(m, "PoolRefusedError", PyExc_RuntimeError);
  nb::class_<PoolProgress>(m, "PoolProgress")
      .def(nb::new_([] { return std::make_shared<PoolProgress>(); }))
      .def_prop_ro("touched_bytes", [](PoolProgress& p) { return p.touched_bytes.load(); })
      .def_prop_ro("locked_bytes", [](PoolProgress& p) { return p.locked_bytes.load(); })
      .def_prop_ro("total_bytes", [](PoolProgress& p) { return p.total_bytes.load(); })
      .def_prop_ro("scanned_bytes", [](PoolProgress& p) { return p.scanned_bytes.load(); })
      .def_prop_ro("adopted_objects", [](PoolProgress& p) { return p.adopted_objects.load(); })
      .def("cancel", [](PoolProgress& p) { p.cancelled.store(true); });

  m.def("pool_file_capacity_bytes", &pool_file_capacity_bytes, "path"_a);

  nb::class_<SegmentStore>(m, "SegmentStore")
      .def(nb::new_(&make_store), nb::kw_only(), "capacity_bytes"_a, "pool_id"_a,
           "free_ahead_bytes"_a = nb::none(), "eviction_policy"_a = "adaptive", "pinned_fraction_max"_a = 0.5,
           "journal_entries_max"_a = 4194304, "lock_memory"_a = false, "pool_path"_a = "",
           "huge_pages"_a = "thp", "numa_nodes"_a = std::vector<uint32_t>(), "retained_fraction_max"_a = 0.10,
           "retained_namespace_fraction_max"_a = 0.05, "segment_id"_a = nb::bytes("", 0),
           "empty_pool"_a = false, "verify_pool"_a = true, "progress"_a = nb::none(),
           "writing_bytes_max"_a = 0, "held_bytes_max"_a = 0, "registered_bytes_max"_a = 0,
           "registered_buffers_max"_a = 4096, "body_bytes_max"_a = 256u << 20, "session_share_max"_a = 0.5,
           "disk_path"_a = "", "disk_capacity_bytes"_a = 0, "disk_threads"_a = 4, "disk_admit_uses"_a = 2,
           "disk_promote_hits"_a = 2, "disk_wait_ms"_a = 1000, "disk_slow_ms"_a = 1000,
           "disk_buffer_bytes_max"_a = 256u << 20, "tell_all"_a = false)
      .def_prop_ro("pool_adopted", [](SegmentStore& s) { return s.pool().adopted(); })
      .def_prop_ro("pool_id",
                   [](SegmentStore& s) { return nb::bytes(s.pool_id().data(), s.pool_id().size()); })
      .def("pool_content", &pool_content)
      .def_prop_ro("cluster_id",
                   [](SegmentStore& s) {
                     const ClusterId id = s.cluster_id();
                     return nb::bytes(id.data(), id == ClusterId{} ? 0 : id.size());
                   })
      .def(
          "set_cluster_id",
          [](SegmentStore& s, const nb::bytes& id) { s.set_cluster_id(exactly<16>(id, "cluster_id")); },
          "cluster_id"_a)
      .def_prop_ro("pool_page_bytes", [](SegmentStore& s) { return s.pool().reserved_page_bytes(); })
      .def_prop_ro("journal_fd", [](SegmentStore& s) { return s.journal().fd(); })
      .def_prop_ro(
          "last_seq", [](SegmentStore& s) { return s.journal().last_seq(); }, released)
      .def_prop_ro(
          "oldest_kept_seq", [](SegmentStore& s) { return s.journal().oldest_kept_seq(); }, released)
      .def("journal_drain", &drain, "entries_max"_a)
      .def(
          "journal_ack", [](SegmentStore& s, uint64_t seq) { s.journal().ack(seq); }, "seq"_a, released)
      .def(
          "journal_rewind", [](SegmentStore& s, uint64_t seq) { return s.journal().rewind(seq); }, "seq"_a,
          released)
      .def("inventory", &inventory, "entries_max"_a)
      .def("hottest", &hottest, "after"_a.none(), "entries_max"_a)
      .def("namespaces", &namespaces)
      .def("set_namespaces", &set_namespaces, "current"_a, "known"_a)
      .def(
          "retire_namespace",
          [](SegmentStore& s, nb::bytes ns) {
            const NamespaceId id = exactly<kNamespaceBytes>(ns, "a namespace id");
            without_gil([&] { s.retire_namespace(id); });
          },
          "ns"_a)
      .def("set_quotas", &set_quotas, "limits"_a)
      .def("evict_bytes", &SegmentStore::evict_bytes, "wanted_bytes"_a, released)
      .def("keep_objects", &keep_objects, "ns"_a, "fingerprints"_a, "intent"_a, "ttl_ms"_a)
      .def("drop_objects", &drop_objects, "ns"_a, "fingerprints"_a)
      .def("keep_namespace", &keep_namespace, "ns"_a, "intent"_a, "ttl_ms"_a)
      .def("retention", &retention)
      .def("budget_usage", &budget_usage)
      .def("stats", [](SegmentStore& s) { return without_gil([&] { return s.stats(); }); })
      .def("close", &SegmentStore::close, released);

  m.def("data_port_options", [] { return declared_options(builtin_extensions()); });
  m.def("data_port_stats", [] {
    nb::list all;
    for (const DataPortExtensionType& type : builtin_extensions())
      for (const CounterSpec& stat : type.stats)
        all.append(nb::make_tuple(stat.name, stat.help, stat.is_gauge));
    return all;
  });

  nb::class_<DataServer>(m, "DataServer")
      .def(nb::new_(&make_server), "store"_a, nb::kw_only(), "tcp_host"_a, "tcp_port"_a = 0,
           "unix_path"_a = "", "tokens"_a = std::vector<std::string>(), "connections_max"_a = 1024,
           "ungreeted_max"_a = 256, "idle_timeout_ms"_a = 600000, "stall_timeout_ms"_a = 2000,
           "transport_options"_a)
      .def_prop_ro("tcp_port", &DataServer::tcp_port)
      .def_prop_ro("extensions", &DataServer::extensions)
      .def_prop_ro("transport_refusals", &DataServer::refusals)
      .def("stats", [](DataServer& s) { return without_gil([&] { return s.stats(); }); })
      .def("remake_unix_socket", [](DataServer& s) { without_gil([&] { s.remake_unix_socket(); }); })
      .def("stop", &DataServer::stop, released);
}

}  // namespace kvstore
