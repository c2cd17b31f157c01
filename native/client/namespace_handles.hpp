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
  // Asks for a newer epoch than the *current* one, also when somebody else bumped it since it was opened
  // here.
  wire::Status bump(int handle, DirectoryClient& directory, const Deadline& deadline);

 private:
  wire::Status bump_once(int handle, DirectoryClient& directory, const Deadline& deadline);

  struct Entry {
    std::string identity;
    std::string name;
    State state;
  };
  mutable Mutex mutex_;
  std::map<int, Entry> entries_ GUARDED_BY(mutex_);
  int next_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvstore
