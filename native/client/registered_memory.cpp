#include "client/registered_memory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "base/process_owner.hpp"

namespace kvstore {
namespace {

std::atomic<uint64_t> next_id{1};

}  // namespace

RegisteredRange::~RegisteredRange() {
  if (fd >= 0) ::close(fd);
}

bool RegisteredMemory::add(uint64_t address, uint64_t size_bytes, int fd) {
  if (address == 0 || size_bytes == 0 || address + size_bytes < address) return false;
  struct stat file{};
  if (fd >= 0 &&
      (::fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || static_cast<uint64_t>(file.st_size) < size_bytes))
    return false;
  const MutexLock lock(mutex_);
  const auto after = by_address_.lower_bound(address);
  if (after != by_address_.end()) {
    if (after->first == address && after->second->size_bytes == size_bytes) {
      if (fd < 0 || after->second->fd < 0) return fd < 0;
      struct stat known{};
      return ::fstat(after->second->fd, &known) == 0 && known.st_dev == file.st_dev &&
             known.st_ino == file.st_ino;
    }
    if (after->first < address + size_bytes) return false;
  }
  if (after != by_address_.begin() && std::prev(after)->second->contains(address, 1)) return false;
  // Read-only, whatever the caller's is: a segment that copies out of the memory has no business to write to it.
  const int own = fd < 0 ? -1 : ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0 && own < 0) return false;
  const uint64_t id = next_id.fetch_add(1, std::memory_order_relaxed);
  by_address_.emplace(address, std::make_shared<const RegisteredRange>(id, address, size_bytes, own));
  address_by_id_.emplace(id, address);
  return true;
}

void RegisteredMemory::remove(uint64_t address) {
  const MutexLock lock(mutex_);
  const auto at = by_address_.find(address);
  if (at == by_address_.end()) return;
  address_by_id_.erase(at->second->id);
  by_address_.erase(at);
}

std::shared_ptr<const RegisteredRange> RegisteredMemory::find(uint64_t address) const {
  const MutexLock lock(mutex_);
  auto at = by_address_.upper_bound(address);
  if (at == by_address_.begin()) return nullptr;
  --at;
  return at->second->contains(address, 1) ? at->second : nullptr;
}

bool RegisteredMemory::current(uint64_t id) const {
  const MutexLock lock(mutex_);
  return address_by_id_.count(id) > 0;
}

namespace {

struct ProcessWide {
  const ProcessOwner owner{};
  RegisteredMemory memory;
};

}  // namespace

RegisteredMemory& RegisteredMemory::shared_buffers() {
  // Never destroyed: buffers may die after main(). A forked child starts anew: its parent's buffers are not mapped there, and
  // their lock may be held for ever.
  static std::atomic<ProcessWide*> current{new ProcessWide};
  ProcessWide* all = current.load(std::memory_order_acquire);
  while (!all->owner.is_here()) {
    auto fresh = std::make_unique<ProcessWide>();
    if (current.compare_exchange_strong(all, fresh.get(), std::memory_order_acq_rel)) all = fresh.release();
  }
  return all->memory;
}

}  // namespace kvstore
