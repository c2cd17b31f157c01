// One bind_* function a file; a new part of the core is a new file and one line in module.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace kvstore {
void bind_keys(nanobind::module_& m);
void bind_segment(nanobind::module_& m);
void bind_directory(nanobind::module_& m);
void bind_client(nanobind::module_& m);
}  // namespace kvstore
