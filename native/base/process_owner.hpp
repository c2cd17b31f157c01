// Which process made an object. What a process shares with its forked children (files, sockets, mapped memory, and threads and
// locks that the child has a mere copy of) is the maker's alone to end: in a child it is left as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace kvstore {

// How many fork()s lie between this process and the one that loaded the library. Takes no system call.
uint64_t fork_generation() noexcept;

// A member, or a static, of what belongs to the process that made it. Immutable.
class ProcessOwner {
 public:
  // False in a forked child of the process that made the object.
  bool is_here() const noexcept { return generation_ == fork_generation(); }

 private:
  uint64_t generation_ = fork_generation();
};

// Like std::make_shared, but a forked child lets its copy lie instead of destroying it.
template <typename T, typename... Args>
std::shared_ptr<T> make_process_owned(Args&&... args) {
  return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [owner = ProcessOwner()](T* object) {
    if (owner.is_here()) delete object;
  });
}

}  // namespace kvstore
