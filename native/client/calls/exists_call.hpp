// exists: what the directory knows; with a pin, what the segments confirm and then keep for that long.
//
// A pinned answer is remembered with its location, so that the get that follows asks no master.
#pragma once

#include "client/calls/page_call.hpp"

namespace kvstore {

class ExistsCall : public PageCall {
 public:
  // `pin_ms` 0: only the directory is asked.
  ExistsCall(Cluster& cluster, const KeyBlock& keys, uint32_t pin_ms, const Deadline& deadline,
             uint8_t* statuses)
      : PageCall(cluster, keys, all_entries(keys), deadline, statuses), pin_ms_(pin_ms) {}

 private:
  Attempt attempt() override { return pin_ms_ > 0 ? confirm_and_pin() : ask_directory(); }
  Attempt ask_directory();
  Attempt confirm_and_pin();
  void remember(const std::vector<ObjectLocation>& where);

  const uint32_t pin_ms_;
};

// How long a location may be used without asking again, if its pin lasts as long. Segments refuse a namespace
// that was cleared; one that has not heard of it yet may serve its pages for so long.
constexpr int64_t kLocationTtlMs = 10000;

}  // namespace kvstore
