// The cap on what an entry may say of its object.
#pragma once

#include <string>

#include "protocol/wire.hpp"

namespace kvstore {

// wire::WireError where it is over the cap.
inline void check_object_length(uint32_t length) {
  if (length > wire::kObjectBytesMax)
    throw wire::WireError(wire::Status::kTooLarge, "an object of " + std::to_string(length) +
                                                       " bytes is over the cap of " +
                                                       std::to_string(wire::kObjectBytesMax));
}

}  // namespace kvstore
