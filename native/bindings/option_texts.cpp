#include <nanobind/stl/string.h>

#include <string>

#include "bindings.hpp"

namespace nb = nanobind;

namespace kvstore {

OptionTexts option_texts(const nb::kwargs& values) {
  OptionTexts texts;
  for (const auto& [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    if (nb::isinstance<nb::bool_>(value))
      texts[name] = nb::cast<bool>(value) ? "true" : "false";
    else if (nb::isinstance<nb::str>(value) || nb::isinstance<nb::int_>(value))
      texts[name] = nb::str(value).c_str();
    else
      throw nb::type_error((name + ": a str, an int or a bool").c_str());
  }
  return texts;
}

}  // namespace kvstore
