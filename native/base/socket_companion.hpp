// What a thread that waits for a socket has to keep going meanwhile: the peer may need it before it can answer.
#pragma once

namespace kvstore {

// One thread at a time.
class SocketCompanion {
 public:
  virtual ~SocketCompanion() = default;
  // Does what there is to do without blocking. True: nothing is left until event_fd() is readable.
  virtual bool advance() = 0;
  virtual int event_fd() const = 0;
};

}  // namespace kvstore
