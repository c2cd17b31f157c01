#include "bindings.hpp"

NB_MODULE(_native, m) {
  m.doc() =
      "Native core of kvstore: see client/kvstore_client/_native.pyi for the contract of every function.";
  kvstore::bind_keys(m);
  kvstore::bind_segment(m);
  kvstore::bind_directory(m);
  kvstore::bind_client(m);
}
