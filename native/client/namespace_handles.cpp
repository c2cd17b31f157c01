#include "client/namespace_handles.hpp"

#include <algorithm>

namespace kvstore {

int NamespaceHandles::add(const std::string& identity, const std::string& name) {
  const MutexLock lock(mutex_);
  for (const auto& [handle, entry] : entries_)
    if (entry.identity == identity) return handle;
  if (entries_.size() == kNamespaceHandlesMax) return -1;
  entries_.emplace(next_, Entry{identity, name, {}, {}});
  return next_++;
}

bool NamespaceHandles::valid(int handle) const {
  const MutexLock lock(mutex_);
  return handle >= 0 && handle < next_;
}

void NamespaceHandles::restore(int handle, const std::string& identity, const std::string& name) {
  const MutexLock lock(mutex_);
  entries_[handle] = Entry{identity, name, {}, {}};
  next_ = std::max(next_, handle + 1);
}

void NamespaceHandles::remove(int handle) {
  const MutexLock lock(mutex_);
  entries_.erase(handle);
}

NamespaceHandles::State NamespaceHandles::state(int handle) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  return found == entries_.end() ? State{} : found->second.state;
}

wire::Status NamespaceHandles::ensure_open(int handle, DirectoryClient& directory, const Deadline& deadline,
                                           NamespaceId* ns) {
  std::string identity, name;
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(handle);
    if (found == entries_.end()) return wire::Status::kUnavailable;
    if (found->second.state.open) {
      *ns = found->second.state.ns;
      return wire::Status::kOk;
    }
    identity = found->second.identity;
    name = found->second.name;
  }
  State fresh;
  const wire::Status status = directory.open_namespace(identity, name, deadline, &fresh.ns, &fresh.epoch);
  if (status != wire::Status::kOk) return status;
  fresh.open = true;
  *ns = fresh.ns;
  const MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return wire::Status::kUnavailable;
  State& kept = found->second.state;
  if (!kept.open || kept.epoch < fresh.epoch) {
    kept = fresh;
    found->second.confirmed = Deadline::Clock::now();
  }
  return wire::Status::kOk;
}

void NamespaceHandles::mark_stale(int handle, const NamespaceId& ns) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  if (found != entries_.end() && found->second.state.ns == ns) found->second.state.open = false;
}

bool NamespaceHandles::is_confirmed(int handle, const NamespaceId& ns) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  return found != entries_.end() && found->second.state.ns == ns &&
         Deadline::Clock::now() - found->second.confirmed < confirmed_;
}

void NamespaceHandles::confirm(int handle, const NamespaceId& ns) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  if (found != entries_.end() && found->second.state.ns == ns)
    found->second.confirmed = Deadline::Clock::now();
}

wire::Status NamespaceHandles::bump(int handle, DirectoryClient& directory, const Deadline& deadline) {
  const wire::Status status = bump_once(handle, directory, deadline);
  return status == wire::Status::kStaleNamespace ? bump_once(handle, directory, deadline) : status;
}

wire::Status NamespaceHandles::bump_once(int handle, DirectoryClient& directory, const Deadline& deadline) {
  NamespaceId ns;
  if (const wire::Status status = ensure_open(handle, directory, deadline, &ns); status != wire::Status::kOk)
    return status;
  State fresh;
  const wire::Status status = directory.bump_namespace(ns, deadline, &fresh.ns, &fresh.epoch);
  if (status == wire::Status::kStaleNamespace) mark_stale(handle, ns);
  if (status != wire::Status::kOk) return status;
  fresh.open = true;
  const MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return wire::Status::kUnavailable;
  if (fresh.ns != namespace_id(found->second.identity, fresh.epoch)) return wire::Status::kInternal;
  found->second.state = fresh;
  found->second.confirmed = Deadline::Clock::now();
  return wire::Status::kOk;
}

}  // namespace kvstore
