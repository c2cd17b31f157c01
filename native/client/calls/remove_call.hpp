// remove: at every segment that the directory names. Removed means removed everywhere: a failure outweighs a
// success, a success outweighs a miss.
#pragma once

#include "client/calls/page_call.hpp"

namespace kvstore {

class RemoveCall : public PageCall {
 public:
  RemoveCall(Cluster& cluster, const KeyBlock& keys, const Deadline& deadline, uint8_t* statuses)
      : PageCall(cluster, keys, all_entries(keys), deadline, statuses) {}

 private:
  Attempt attempt() override;
};

}  // namespace kvstore
