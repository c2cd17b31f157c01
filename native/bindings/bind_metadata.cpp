#include <nanobind/stl/string.h>

#include <memory>
#include <system_error>

#include "bindings.hpp"
#include "master/batch_staging.hpp"
#include "master/commit_thread.hpp"
#include "released_gil.hpp"

namespace nb = nanobind;

namespace kvstore {
namespace {

// Runs without the GIL. A system error becomes OSError(errno, text), a directory in use BlockingIOError.
template <typename Work>
auto without_gil(Work&& work) {
  try {
    ReleasedGil nogil;
    return work();
  } catch (const std::system_error& e) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(e.code().value(), e.what()).ptr());
  } catch (const LogInUse& e) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(EWOULDBLOCK, e.what()).ptr());
  }
  throw nb::python_error();
}

// A log that is read, and then written by its thread.
class BoundLog {
 public:
  BoundLog(std::string directory, uint64_t file_bytes, uint32_t files_max)
      : log_(without_gil([&] {
          return std::make_unique<CommitLog>(CommitLog::Options{std::move(directory), file_bytes, files_max});
        })) {}

  nb::tuple read(uint64_t released) {
    if (log_ == nullptr) throw nb::value_error("the log is read once, before anything is committed");
    CommitLog::Contents contents = without_gil([&] { return log_->read(released); });
    without_gil([&] { thread_ = std::make_unique<CommitThread>(std::move(log_), released); });
    nb::list records;
    for (const CommitLog::Record& record : contents.records)
      records.append(
          nb::make_tuple(record.sequence, nb::bytes(record.payload.data(), record.payload.size())));
    return nb::make_tuple(records, contents.lost, contents.trouble);
  }

  CommitThread& thread() {
    if (thread_ == nullptr) throw nb::value_error("the log has not been read");
    return *thread_;
  }

  void commit(uint64_t ticket, nb::list payloads) {
    std::vector<std::string> copies;
    copies.reserve(nb::len(payloads));
    for (nb::handle each : payloads) {
      const nb::bytes payload = nb::cast<nb::bytes>(each);
      copies.emplace_back(payload.c_str(), payload.size());
    }
    thread().submit(ticket, std::move(copies));
  }

  nb::list finished() {
    nb::list out;
    for (const CommitThread::Outcome& each : thread().take_finished())
      out.append(nb::make_tuple(each.ticket, each.first_sequence, each.text));
    return out;
  }

  bool close(uint32_t timeout_ms) {
    log_.reset();
    return thread_ == nullptr || without_gil([&] { return thread_->stop(timeout_ms); });
  }

 private:
  std::unique_ptr<CommitLog> log_;
  std::unique_ptr<CommitThread> thread_;
};

nb::tuple converted(const StagedBatch& batch, const nb::bytes& groups) {
  nb::list records;
  for (const StagedRecord& record : batch.records) {
    const char* body = record.bytes.data() + kEnvelopeBytes;
    const size_t body_bytes = record.bytes.size() - kEnvelopeBytes;
    // Nothing was left out or cut: the groups are those that came.
    const bool same = batch.refused == 0 && body_bytes == groups.size();
    records.append(nb::make_tuple(record.entries, same ? groups : nb::bytes(body, body_bytes),
                                  nb::bytes(record.bytes.data(), record.bytes.size())));
  }
  return nb::make_tuple(batch.entries, batch.refused, batch.has_removes, records);
}

}  // namespace

void bind_metadata(nb::module_& m) {
  nb::class_<BoundLog>(m, "CommitLog")
      .def(nb::init<std::string, uint64_t, uint32_t>(), nb::arg("directory"), nb::arg("file_bytes"),
           nb::arg("files_max"))
      .def("read", &BoundLog::read, nb::arg("released"))
      .def("fd", [](BoundLog& self) { return self.thread().fd(); })
      .def("commit", &BoundLog::commit, nb::arg("ticket"), nb::arg("payloads"))
      .def("finished", &BoundLog::finished)
      .def(
          "release", [](BoundLog& self, uint64_t sequence) { self.thread().release(sequence); },
          nb::arg("sequence"))
      .def("close", &BoundLog::close, nb::arg("timeout_ms"));
  m.def(
      "stage_journal",
      [](nb::bytes groups, uint64_t first_seq, uint64_t accepted_seq, uint64_t entries_max) {
        return converted(stage_journal(groups.data(), groups.size(), first_seq, accepted_seq, entries_max),
                         groups);
      },
      nb::arg("groups"), nb::arg("first_seq"), nb::arg("accepted_seq"), nb::arg("entries_max"));
  m.def(
      "stage_inventory",
      [](nb::bytes groups, uint64_t seq, uint64_t entries_max) {
        return converted(stage_inventory(groups.data(), groups.size(), seq, entries_max), groups);
      },
      nb::arg("groups"), nb::arg("seq"), nb::arg("entries_max"));
}

}  // namespace kvstore
