#include "client/peer_troubles.hpp"

namespace kvstore {
namespace {

// What a peer that is well may take on a busy machine.
constexpr auto kTimeToAnswer = std::chrono::milliseconds(20);

}  // namespace

bool tells_of_peer(NetStatus status, const Deadline& deadline, Deadline::Clock::time_point began) {
  if (deadline.cancelled()) return false;
  return status != NetStatus::kTimeout ||
         (!deadline.moves() && Deadline::Clock::now() - began >= kTimeToAnswer);
}

void PeerTroubles::failed(const std::string& subject, Trouble trouble, std::string_view text) {
  const std::string kept(text.substr(0, kTextBytesMax));
  const MutexLock lock(mutex_);
  if (states_.size() >= kSubjectsMax && states_.count(subject) == 0) return;
  State& state = states_[subject];
  const bool same = state.count > 0 && state.trouble == trouble && state.text == kept;
  ++state.count;
  if (same) return;
  state = {trouble, kept, 1};
  size_.store(states_.size(), std::memory_order_relaxed);
  changes_.fetch_add(1, std::memory_order_release);
}

void PeerTroubles::failed_somehow(const std::string& subject, NetStatus status) {
  {
    const MutexLock lock(mutex_);
    const auto known = states_.find(subject);
    if (known != states_.end()) {
      ++known->second.count;
      return;
    }
  }
  switch (status) {
    case NetStatus::kOk:
      return;
    case NetStatus::kTimeout:
      return failed(subject, Trouble::kNoAnswer);
    case NetStatus::kUnresolved:
      return failed(subject, Trouble::kUnresolved);
    case NetStatus::kUnreachable:
      return failed(subject, Trouble::kUnreachable);
    case NetStatus::kClosed:
      return failed(subject, Trouble::kClosed);
    case NetStatus::kProtocol:
      return failed(subject, Trouble::kNotOurs);
    case NetStatus::kRefused:
      return failed(subject, Trouble::kRefused);
  }
}

void PeerTroubles::erase(const std::string& subject) {
  const MutexLock lock(mutex_);
  if (states_.erase(subject) == 0) return;
  size_.store(states_.size(), std::memory_order_relaxed);
  changes_.fetch_add(1, std::memory_order_release);
}

std::vector<PeerTroubles::Record> PeerTroubles::all() const {
  const MutexLock lock(mutex_);
  std::vector<Record> records;
  for (const auto& [subject, state] : states_)
    records.push_back({subject, state.trouble, state.text, state.count});
  return records;
}

const char* PeerTroubles::name(Trouble trouble) {
  // In the order of the enumeration; the texts that go with them are in kvstore_client/troubles.py.
  static const std::array<const char*, static_cast<size_t>(Trouble::kCount)> kNames = {
      "unresolved", "unreachable", "no_answer",    "closed",  "not_ours",    "unauthorized",
      "version",    "wrong_peer",  "not_rightful", "refused", "not_serving", "no_room",
  };
  return kNames[static_cast<size_t>(trouble)];
}

Trouble trouble_of(wire::Status status) {
  switch (status) {
    case wire::Status::kUnauthorized:
      return Trouble::kUnauthorized;
    case wire::Status::kUnsupportedVersion:
      return Trouble::kVersion;
    case wire::Status::kWrongPeer:
      return Trouble::kWrongPeer;
    default:
      return Trouble::kRefused;
  }
}

}  // namespace kvstore
