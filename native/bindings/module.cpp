#include "bindings.hpp"

NB_MODULE(_native, m) {
  // What daemon threads hold when the process exits is no leak that anybody could mend, and nothing to tell an engine's users.
  nanobind::set_leak_warnings(false);
  m.doc() =
      "Native core of kvstore: see client/kvstore_client/_native.pyi for the contract of every function.";
  kvstore::bind_keys(m);
  kvstore::bind_segment(m);
  kvstore::bind_link(m);
  kvstore::bind_copying(m);
  kvstore::bind_directory(m);
  kvstore::bind_metadata(m);
  kvstore::bind_client(m);
}
