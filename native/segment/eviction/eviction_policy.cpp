#include "segment/eviction/eviction_policy.hpp"

#include <stdexcept>

#include "segment/eviction/policies.hpp"

namespace kvstore {
namespace {

struct Registered {
  const char* name;
  std::unique_ptr<EvictionPolicy> (*make)(uint32_t slot_count);
};
// A table and not self-registration: the core is a static library, whose unreferenced files a linker drops.
constexpr Registered kPolicies[] = {{"adaptive", make_adaptive_policy},
                                    {"interval", make_interval_policy},
                                    {"lrfu", make_lrfu_policy},
                                    {"2q", make_two_queue_policy},
                                    {"lru", make_lru_policy}};

}  // namespace

std::unique_ptr<EvictionPolicy> make_eviction_policy(const std::string& name, uint32_t slot_count) {
  std::string known;
  for (const Registered& policy : kPolicies) {
    if (name == policy.name) return policy.make(slot_count);
    known += std::string(known.empty() ? "" : ", ") + policy.name;
  }
  throw std::invalid_argument("unknown eviction policy '" + name + "'; known: " + known);
}

}  // namespace kvstore
