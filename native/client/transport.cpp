#include "client/transport.hpp"

#include <algorithm>
#include <stdexcept>

namespace kvstore {

std::vector<CounterSpec> counters_of(const TransportType& type) {
  const std::string name = type.name;
  std::vector<CounterSpec> all{
      {transport_bytes_counter(type.name, "get"), "bytes of pages that gets moved by " + name},
      {transport_bytes_counter(type.name, "put"), "bytes of pages that puts moved by " + name}};
  all.insert(all.end(), type.counters.begin(), type.counters.end());
  return all;
}

TransportSet::TransportSet(std::vector<TransportType> types, TransportContext& context,
                           const OptionTexts& options) {
  std::stable_sort(types.begin(), types.end(), [](const TransportType& a, const TransportType& b) {
    return a.preference > b.preference;
  });
  std::vector<OptionSpec> declared;
  std::string names;
  for (const TransportType& type : types) {
    declared.insert(declared.end(), type.options.begin(), type.options.end());
    for (const CounterSpec& counter : counters_of(type)) context.counters.named(counter.name);
    names += (names.empty() ? "" : ", ") + std::string(type.name);
  }
  const DeclaredOptions values(declared, options);
  bool others_barred = false;
  for (const TransportType& type : types) {
    if (others_barred && type.reach == TransportType::Reach::kAnyHost) continue;
    std::string refusal;
    auto factory = type.make(context, values, &refusal);
    if (!refusal.empty()) refusals_.emplace(type.name, std::move(refusal));
    if (factory == nullptr) continue;
    others_barred = others_barred || factory->required();
    factories_.push_back(std::move(factory));
  }
  if (factories_.empty() && refusals_.empty())
    throw std::invalid_argument("every transport is off (" + names + "): no segment could be reached");
}

std::unique_ptr<Transport> TransportSet::open(const SegmentRecord& segment, const Deadline& deadline,
                                              NetStatus* why) const {
  *why = NetStatus::kUnreachable;
  for (const auto& factory : factories_) {
    if (auto transport = factory->open(segment, deadline, why)) return transport;
    // Behind all addresses of a segment stands one process: when it hangs on one, it hangs on the others.
    if (*why == NetStatus::kTimeout) return nullptr;
  }
  return nullptr;
}

bool TransportSet::near(const SegmentRecord& segment) const {
  return std::any_of(factories_.begin(), factories_.end(),
                     [&](const auto& factory) { return factory->near(segment); });
}

void TransportSet::memory_registered(const std::shared_ptr<const RegisteredRange>& range) const {
  for (const auto& factory : factories_) factory->memory_registered(range);
}

}  // namespace kvstore
