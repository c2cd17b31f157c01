#include "base/declared.hpp"

#include <charconv>

namespace kvstore {

DeclaredOptions::DeclaredOptions(const std::vector<OptionSpec>& declared, const OptionTexts& given) {
  std::string known;
  for (const OptionSpec& option : declared) {
    if (!values_.emplace(option.name, option.fallback).second)
      throw std::invalid_argument(std::string(option.name) + ": an option of two parts");
    known += (known.empty() ? "" : ", ") + std::string(option.name);
  }
  for (const auto& [name, text] : given) {
    const auto at = values_.find(name);
    if (at == values_.end())
      throw std::invalid_argument(name + ": no such option; there are " + (known.empty() ? "none" : known));
    at->second = text;
  }
}

const std::string& DeclaredOptions::text(std::string_view name) const {
  const auto at = values_.find(name);
  if (at == values_.end()) throw std::invalid_argument(std::string(name) + ": nobody declares this option");
  return at->second;
}

bool DeclaredOptions::flag(std::string_view name) const {
  const std::string& value = text(name);
  if (value != "true" && value != "false")
    throw std::invalid_argument(std::string(name) + ": 'true' or 'false', not '" + value + "'");
  return value == "true";
}

uint64_t DeclaredOptions::number(std::string_view name, uint64_t min, uint64_t max) const {
  const std::string& value = text(name);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < min || number > max)
    throw std::invalid_argument(std::string(name) + ": a number between " + std::to_string(min) + " and " +
                                std::to_string(max) + ", not '" + value + "'");
  return number;
}

}  // namespace kvstore
