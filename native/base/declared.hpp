// Options and counters that parts plugged in from outside declare by name, and the option texts that were given for them.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvstore {

struct OptionSpec {
  const char* name;
  const char* fallback;  // used where none is given
  const char* help;
};

struct CounterSpec {
  std::string name;  // stable: dashboards read it
  std::string help;
  bool is_gauge = false;  // it can fall
};

using OptionTexts = std::map<std::string, std::string>;

// The values of all declared options. Immutable. Everything throws std::invalid_argument, naming the option.
class DeclaredOptions {
 public:
  // Throws when a name is given that nobody declared, or two declare the same one.
  DeclaredOptions(const std::vector<OptionSpec>& declared, const OptionTexts& given);

  const std::string& text(std::string_view name) const;
  // "true" or "false".
  bool flag(std::string_view name) const;
  uint64_t number(std::string_view name, uint64_t min, uint64_t max) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace kvstore
