// Texts that people and other processes write: hex keys, option texts, numeric hosts.
#include <algorithm>
#include <cctype>

#include "base/declared.hpp"
#include "base/host_resolver.hpp"
#include "fuzz.hpp"
#include "protocol/keys.hpp"

namespace kvstore::fuzz {
namespace {

void check_hex(const std::string& text) {
  uint8_t hash[kHashBytes];
  const bool is_hash = text.size() == 2 * kHashBytes && std::all_of(text.begin(), text.end(), [](char c) {
                         return std::isxdigit(static_cast<unsigned char>(c));
                       });
  HOLDS(read_hex_hash(text, hash) == is_hash);
  if (!is_hash) {
    HOLDS(page_hash(text) == string_hash(text));
    return;
  }
  for (size_t i = 0; i < kHashBytes; ++i)
    HOLDS(hash[i] == std::stoul(text.substr(2 * i, 2), nullptr, 16) && hash[i] == page_hash(text)[i]);
}

void check_option(const std::string& text) {
  const std::vector<OptionSpec> declared{{"limit", "1", ""}, {"wanted", "true", ""}};
  const DeclaredOptions options(declared, {{"limit", text}, {"wanted", text}});
  const bool is_number = !text.empty() && text.size() <= 6 &&
                         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  try {
    const uint64_t value = options.number("limit", 3, 65536);
    HOLDS(value >= 3 && value <= 65536 && text.find(std::to_string(value)) != std::string::npos);
  } catch (const std::invalid_argument& refused) {
    HOLDS(!is_number || std::stoul(text) < 3 || std::stoul(text) > 65536);
    HOLDS(std::string(refused.what()).find("limit") == 0);
  }
  try {
    HOLDS(options.flag("wanted") == (text == "true"));
  } catch (const std::invalid_argument&) {
    HOLDS(text != "true" && text != "false");
  }
  try {
    const DeclaredOptions other(declared, {{text, "1"}});
    HOLDS(text == "limit" || text == "wanted");
  } catch (const std::invalid_argument&) {
  }
}

// Numeric hosts alone: names are the system's to look up.
void check_host(const std::string& text) {
  if (text.empty() || !std::all_of(text.begin(), text.end(), [](char c) {
        return std::isxdigit(static_cast<unsigned char>(c)) || c == '.' || c == ':';
      }))
    return;
  if (text.find(':') == std::string::npos && std::isdigit(static_cast<unsigned char>(text.back())) == 0)
    return;
  static HostResolver resolver([](const std::string&) { return std::vector<SocketAddress>(); });
  for (SocketAddress& address : resolver.resolve(text, 7440, Deadline::after_ms(0))) {
    HOLDS(address.family() == AF_INET || address.family() == AF_INET6);
    HOLDS(address.size <= sizeof(address.storage) && address.same_host(address));
  }
}

}  // namespace

std::vector<Seed> seeds() {
  std::vector<Seed> seeds;
  for (const char* text : {"0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789ABCDEF", "3", "65536",
                           "65537", "true", "false", "limit", "wanted", "a string key", "10.0.0.7", "::1",
                           "fd00::7", "::ffff:10.0.0.7", "0x7f.1", "2130706433"})
    seeds.push_back({"text_" + std::to_string(seeds.size()), Bytes(text, text + std::strlen(text))});
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), std::min<size_t>(size, 512));
  check_hex(text);
  check_option(text);
  check_host(text);
  return 0;
}

}  // namespace kvstore::fuzz
