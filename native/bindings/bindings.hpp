// One bind_* function a file; a new part of the core is a new file and one line in module.cpp.
#pragma once

#include <nanobind/nanobind.h>

#include "base/declared.hpp"

namespace kvstore {
void bind_keys(nanobind::module_& m);
void bind_segment(nanobind::module_& m);
void bind_link(nanobind::module_& m);
void bind_copying(nanobind::module_& m);
void bind_directory(nanobind::module_& m);
void bind_metadata(nanobind::module_& m);
void bind_client(nanobind::module_& m);

// Options of transports, given as keywords: a bool is "true" or "false". Throws TypeError for what is no text, number or bool.
OptionTexts option_texts(const nanobind::kwargs& values);

// (name, value where none is given, help) of each, as they are declared.
template <typename Types>
nanobind::list declared_options(const Types& types) {
  nanobind::list all;
  for (const auto& type : types)
    for (const OptionSpec& option : type.options)
      all.append(nanobind::make_tuple(option.name, option.fallback, option.help));
  return all;
}
}  // namespace kvstore
