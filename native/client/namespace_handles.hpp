// Namespaces by handle: identity and name for good, id and epoch as the directory last told. Thread-safe; no
// lock is held over IO.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/mutex.hpp"
#include "client/directory_client.hpp"

namespace kvstore {

constexpr size_t kNamespaceHandlesMax = 4096;

class NamespaceHandles {
 public:
  // `confirmed_ms`: how long the directory's word on a namespace is taken for good, where it can be asked again.
  explicit NamespaceHandles(int64_t confirmed_ms) : confirmed_(std::chrono::milliseconds(confirmed_ms)) {}

  // The handle of an identity: the same one each time. -1 when there are kNamespaceHandlesMax.
  int add(const std::string& identity, const std::string& name);
  // Whether it was ever given out, also when it has been removed since.
  bool valid(int handle) const;
  // The handle that another client of these settings gave out for the identity: a forked child's objects have their parent's.
  void restore(int handle, const std::string& identity, const std::string& name);
  // Makes room for another. The handle is never given out again: a call that still has it finds nothing open.
  void remove(int handle);

  struct State {
    bool open = false;
    NamespaceId ns{};
    uint32_t epoch = 0;
  };
  State state(int handle) const;

  // Opens the namespace unless it is open.
  wire::Status ensure_open(int handle, DirectoryClient& directory, const Deadline& deadline, NamespaceId* ns);
  // `ns` was answered with STALE_NAMESPACE: the next ensure_open() asks again. Nothing when another thread
  // did so already.
  void mark_stale(int handle, const NamespaceId& ns);
  // Whether the directory has called `ns` current a short while ago. When it has not, whoever means to do without it asks:
  // pages of a namespace that was cleared meanwhile are only left alone by segments that have heard of it.
  bool is_confirmed(int handle, const NamespaceId& ns) const;
  // The directory has just served a request in it.
  void confirm(int handle, const NamespaceId& ns);
  // Asks for a newer epoch than the *current* one, also when somebody else bumped it since it was opened
  // here.
  wire::Status bump(int handle, DirectoryClient& directory, const Deadline& deadline);

 private:
  wire::Status bump_once(int handle, DirectoryClient& directory, const Deadline& deadline);

  struct Entry {
    std::string identity;
    std::string name;
    State state;
    Deadline::Clock::time_point confirmed{};
  };
  const Deadline::Clock::duration confirmed_;
  mutable Mutex mutex_;
  std::map<int, Entry> entries_ GUARDED_BY(mutex_);
  int next_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvstore
