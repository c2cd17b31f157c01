#include "base/host_resolver.hpp"

#include <netdb.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "base/mutex.hpp"

namespace kvstore {
namespace {

using Clock = Deadline::Clock;

bool is_loopback(const SocketAddress& address) {
  if (address.family() == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

// What getaddrinfo answers; `error` is its own.
std::vector<SocketAddress> query(const std::string& host, int flags, int* error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  *error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (*error != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) || a->ai_addrlen > sizeof(sockaddr_storage))
      continue;
    SocketAddress address;
    std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
    address.size = a->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

std::vector<SocketAddress> query_system(const std::string& host) {
  int error = 0;
  // Without questions for families that this machine has no address of: name servers that leave those unanswered cost seconds.
  std::vector<SocketAddress> addresses = query(host, AI_ADDRCONFIG, &error);
  // Addresses on loopback don't count as having the family, but are what local names stand for.
  const bool local = error == 0 && std::all_of(addresses.begin(), addresses.end(), is_loopback);
  if (!local && error != EAI_NONAME && error != EAI_NODATA && error != EAI_ADDRFAMILY) return addresses;
  std::vector<SocketAddress> all = query(host, 0, &error);
  return all.empty() ? addresses : all;
}

// Families by turns, beginning with the first one's: where one of them leads nowhere, the other is tried next.
std::vector<SocketAddress> by_turns(const std::vector<SocketAddress>& addresses) {
  std::vector<SocketAddress> first, second;
  for (const SocketAddress& a : addresses) {
    std::vector<SocketAddress>& kin = a.family() == addresses.front().family() ? first : second;
    const auto same = [&a](const SocketAddress& b) { return a.same_host(b); };
    if (std::none_of(kin.begin(), kin.end(), same)) kin.push_back(a);
  }
  std::vector<SocketAddress> out;
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size()) out.push_back(first[i]);
    if (i < second.size()) out.push_back(second[i]);
  }
  if (out.size() > HostResolver::kAddressesMax) out.resize(HostResolver::kAddressesMax);
  return out;
}

void to_front(std::vector<SocketAddress>* addresses, const SocketAddress& wanted) {
  const auto same = [&wanted](const SocketAddress& a) { return a.same_host(wanted); };
  const auto at = std::find_if(addresses->begin(), addresses->end(), same);
  if (at != addresses->end()) std::rotate(addresses->begin(), at, at + 1);
}

std::atomic<HostResolver*> process_resolver{nullptr};

}  // namespace

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET)
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  else
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
}

bool SocketAddress::same_host(const SocketAddress& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(other.storage).sin_addr.s_addr;
  const auto& a = reinterpret_cast<const sockaddr_in6&>(storage);
  const auto& b = reinterpret_cast<const sockaddr_in6&>(other.storage);
  return a.sin6_scope_id == b.sin6_scope_id && IN6_ARE_ADDR_EQUAL(&a.sin6_addr, &b.sin6_addr);
}

struct HostResolver::Name {
  std::vector<SocketAddress> addresses;  // the last good ones
  bool running = false;                  // a lookup is
  bool wanted = false;                   // somebody waits for an answer, since:
  Clock::time_point wanted_since{};
  Clock::time_point answered_at{};
  Clock::time_point fresh_until{};
  Clock::time_point used_at{};
};

struct HostResolver::State {
  State(Query q, const Times& t) : query(std::move(q)), times(t) {}

  const Query query;
  const Times times;
  Mutex mutex;  // guards each Name too
  CondVar answered;
  std::map<std::string, std::shared_ptr<Name>> names GUARDED_BY(mutex);
  size_t lookups GUARDED_BY(mutex) = 0;

  // What a lookup has found, nothing: no answer.
  void answer(Name* name, std::vector<SocketAddress>* found) REQUIRES(mutex) {
    name->answered_at = Clock::now();
    name->fresh_until =
        name->answered_at + std::chrono::milliseconds(found->empty() ? times.retry_ms : times.fresh_ms);
    if (!found->empty()) {
      if (!name->addresses.empty())
        to_front(found, name->addresses.front());  // what was connected to stays there
      name->addresses.swap(*found);
    }
    name->running = name->wanted = false;
    --lookups;
  }

  // The name, made when it is new.
  std::shared_ptr<Name> name_of(const std::string& host) REQUIRES(mutex) {
    const auto it = names.find(host);
    if (it != names.end()) return it->second;
    if (names.size() >= kNamesMax) {
      const auto oldest = std::min_element(names.begin(), names.end(), [](const auto& a, const auto& b) {
        return a.second->used_at < b.second->used_at;
      });
      names.erase(oldest);
    }
    return names.emplace(host, std::make_shared<Name>()).first->second;
  }

  // False when there is no thread to be had. `state`: this one, for the thread to share.
  bool start(const std::shared_ptr<State>& state, const std::shared_ptr<Name>& name, const std::string& host)
      REQUIRES(mutex);
};

bool HostResolver::State::start(const std::shared_ptr<State>& state, const std::shared_ptr<Name>& name,
                                const std::string& host) {
  try {
    std::thread([state, name, host]() noexcept {
      std::vector<SocketAddress> found;
      try {
        found = by_turns(state->query(host));
      } catch (...) {  // as if there were no answer
      }
      const MutexLock answering(state->mutex);
      state->answer(name.get(), &found);
      state->answered.notify_all();
    }).detach();
  } catch (const std::exception&) {
    return false;
  }
  name->running = true;
  ++lookups;
  return true;
}

HostResolver::HostResolver(Query query, const Times& times)
    : state_(std::make_shared<State>(std::move(query), times)) {}

HostResolver& HostResolver::process() {
  HostResolver* resolver = process_resolver.load(std::memory_order_acquire);
  // The parent's is left as it is: its lock may be held by a thread that is not here.
  if (resolver != nullptr && resolver->owner_.is_here()) return *resolver;
  auto* mine = new HostResolver(
      query_system);  // never destroyed: a lookup may still be running when the process exits
  if (process_resolver.compare_exchange_strong(resolver, mine, std::memory_order_acq_rel)) return *mine;
  delete mine;  // another thread was faster
  return *resolver;
}

std::vector<SocketAddress> HostResolver::resolve(const std::string& host, uint16_t port,
                                                 const Deadline& deadline) noexcept {
  try {
    int error = 0;
    std::vector<SocketAddress> addresses = query(host, AI_NUMERICHOST, &error);
    if (addresses.empty()) addresses = look_up(host, deadline);
    for (SocketAddress& address : addresses) address.set_port(port);
    return addresses;
  } catch (...) {  // no memory: the host can't be found now
    return {};
  }
}

std::vector<SocketAddress> HostResolver::look_up(const std::string& host, const Deadline& deadline) {
  State& state = *state_;
  // A probe of a doubtful peer has less time than its call.
  const Deadline::Wait waiting(deadline);
  const Clock::time_point asked_at = Clock::now();
  MutexLock lock(state.mutex);
  const std::shared_ptr<Name> name = state.name_of(host);
  // Fresh, or since we asked.
  const auto answered = [&](Clock::time_point now) {
    return !name->running && (now < name->fresh_until || name->answered_at >= asked_at);
  };
  for (;;) {
    const Clock::time_point now = Clock::now();
    name->used_at = now;
    if (answered(now)) break;
    if (!name->wanted) name->wanted = true, name->wanted_since = now;
    if (!name->running && state.lookups < kLookupsMax && !state.start(state_, name, host)) break;
    const auto enough = name->addresses.empty()
                            ? Clock::time_point::max()
                            : name->wanted_since + std::chrono::milliseconds(state.times.known_wait_ms);
    lock.unlock();
    const bool over = waiting.over() || now >= enough;
    lock.lock();
    if (over || answered(Clock::now())) break;
    if (name->running || state.lookups >= kLookupsMax)
      state.answered.wait_until(state.mutex, std::min(waiting.slice_end(), enough));
  }
  return name->addresses;
}

void HostResolver::connected(const std::string& host, const SocketAddress& address) noexcept {
  const MutexLock lock(state_->mutex);
  const auto it = state_->names.find(host);
  if (it == state_->names.end()) return;
  to_front(&it->second->addresses, address);
}

void HostResolver::unreachable(const std::string& host) noexcept {
  const MutexLock lock(state_->mutex);
  const auto it = state_->names.find(host);
  if (it == state_->names.end()) return;
  Name& name = *it->second;
  name.fresh_until =
      std::min(name.fresh_until, name.answered_at + std::chrono::milliseconds(state_->times.retry_ms));
}

}  // namespace kvstore
