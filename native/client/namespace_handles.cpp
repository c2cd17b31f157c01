#include "client/namespace_handles.hpp"

namespace kvstore {

int NamespaceHandles::add(const std::string& identity, const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].identity == identity) return static_cast<int>(i);
  if (entries_.size() == kNamespaceHandlesMax) return -1;
  entries_.push_back({identity, name, {}});
  return static_cast<int>(entries_.size() - 1);
}

bool NamespaceHandles::valid(int handle) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return handle >= 0 && static_cast<size_t>(handle) < entries_.size();
}

NamespaceHandles::State NamespaceHandles::state(int handle) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_[static_cast<size_t>(handle)].state;
}

wire::Status NamespaceHandles::ensure_open(int handle, DirectoryClient& directory, const Deadline& deadline,
                                           NamespaceId* ns) {
  std::string identity, name;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Entry& entry = entries_[static_cast<size_t>(handle)];
    if (entry.state.open) {
      *ns = entry.state.ns;
      return wire::Status::kOk;
    }
    identity = entry.identity;
    name = entry.name;
  }
  State fresh;
  const wire::Status status = directory.open_namespace(identity, name, deadline, &fresh.ns, &fresh.epoch);
  if (status != wire::Status::kOk) return status;
  fresh.open = true;
  *ns = fresh.ns;
  std::lock_guard<std::mutex> lock(mutex_);
  State& kept = entries_[static_cast<size_t>(handle)].state;
  if (!kept.open || kept.epoch < fresh.epoch) kept = fresh;
  return wire::Status::kOk;
}

void NamespaceHandles::mark_stale(int handle, const NamespaceId& ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  State& kept = entries_[static_cast<size_t>(handle)].state;
  if (kept.ns == ns) kept.open = false;
}

wire::Status NamespaceHandles::bump(int handle, DirectoryClient& directory, const Deadline& deadline) {
  NamespaceId ns;
  if (const wire::Status status = ensure_open(handle, directory, deadline, &ns); status != wire::Status::kOk)
    return status;
  State fresh;
  const wire::Status status = directory.bump_namespace(ns, deadline, &fresh.ns, &fresh.epoch);
  if (status == wire::Status::kStaleNamespace) mark_stale(handle, ns);
  if (status != wire::Status::kOk) return status;
  fresh.open = true;
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[static_cast<size_t>(handle)];
  if (fresh.ns != namespace_id(entry.identity, fresh.epoch)) return wire::Status::kInternal;
  entry.state = fresh;
  return wire::Status::kOk;
}

}  // namespace kvstore
