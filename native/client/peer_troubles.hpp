// What is wrong with which peer, as this client finds it: one state a peer, said when it changes. Thread-safe.
//
// A subject is "master HOST:PORT", "segment HOST:PORT", "segment SOCKET", or the cluster as a whole: "masters" (none of them
// serves) and "room" (no segment takes pages).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/mutex.hpp"
#include "protocol/net_status.hpp"

namespace kvstore {

enum class Trouble : uint8_t {
  kUnresolved,    // its name has no address
  kUnreachable,   // nothing listens, or there is no way to it
  kNoAnswer,      // it does not answer in time
  kClosed,        // it closes the connection
  kNotOurs,       // what it says is not the protocol, or not this one
  kUnauthorized,  // it refuses the token
  kVersion,       // it speaks other versions of the protocol
  kWrongPeer,     // somebody else listens there
  kNotRightful,   // another user listens there, in a directory that others may write to
  kRefused,       // it refuses for another reason, which it says
  kNotServing,    // no master serves
  kNoRoom,        // no segment takes pages
  kCount
};

class PeerTroubles {
 public:
  // `text`: what the peer said, empty where it said nothing.
  void failed(const std::string& subject, Trouble trouble, std::string_view text = "");
  // The same, unless something is known to be wrong with the subject already.
  void failed_somehow(const std::string& subject, NetStatus status);
  // It works. Costs nothing while nothing is wrong with anybody.
  void works(const std::string& subject) {
    if (!none()) erase(subject);
  }
  bool none() const { return size_.load(std::memory_order_relaxed) == 0; }

  struct Record {
    std::string subject;
    Trouble trouble;
    std::string text;
    uint64_t count;  // failures since it began
  };
  std::vector<Record> all() const;
  // Grows whenever all() becomes another, counts aside.
  uint64_t changes() const { return changes_.load(std::memory_order_acquire); }

  static const char* name(Trouble trouble);

  static constexpr size_t kSubjectsMax = 1024;  // further ones go unsaid
  static constexpr size_t kTextBytesMax = 300;

 private:
  struct State {
    Trouble trouble = Trouble::kUnreachable;
    std::string text;
    uint64_t count = 0;
  };
  void erase(const std::string& subject) EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, State> states_ GUARDED_BY(mutex_);
  std::atomic<size_t> size_{0};
  std::atomic<uint64_t> changes_{0};
};

// Whether an attempt that began then and failed so tells anything of the peer: it does not where the call was broken off, or had
// hardly any time for an answer.
bool tells_of_peer(NetStatus status, const Deadline& deadline, Deadline::Clock::time_point began);

// What a refused HELLO or request amounts to.
Trouble trouble_of(wire::Status status);

}  // namespace kvstore
