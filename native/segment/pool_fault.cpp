#include "segment/pool_fault.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

namespace kvstore {
namespace {

constexpr size_t kPoolsMax = 8;  // a process has one; tests have some
constexpr size_t kPathBytes = 256;

// What the handler reads. `taken` keeps a place for one note, `size_bytes` says that it may be read.
struct Place {
  std::atomic<bool> taken{false};
  std::atomic<uint64_t> size_bytes{0};
  uintptr_t base = 0;
  char path[kPathBytes] = {};
};
Place places[kPoolsMax];
struct sigaction before;

// A line without an allocation or a lock: a signal handler writes it.
struct Line {
  char text[kPathBytes + 512];
  size_t size = 0;

  void add(const char* part) {
    const size_t more = std::min(std::strlen(part), sizeof(text) - size);
    std::memcpy(text + size, part, more);
    size += more;
  }
  void add(uint64_t number) {
    char digits[21];
    size_t at = sizeof(digits) - 1;
    digits[at] = 0;
    do digits[--at] = static_cast<char>('0' + number % 10);
    while ((number /= 10) != 0);
    add(digits + at);
  }
};

void say(const Place& place, uint64_t offset, int code) {
  Line line;
  line.add("kvstore: byte ");
  line.add(offset);
  line.add(" of the pool ");
  line.add(place.path);
  line.add(code == BUS_ADRERR
               ? " is gone (SIGBUS): its file was made shorter by somebody, or its file system is full. "
               : " is broken (SIGBUS): the kernel's log says whether the machine's memory is. ");
  line.add(
      "This process ends. Start it again; if it does not start, remove that file. It costs warm pages "
      "only\n");
  for (size_t done = 0; done < line.size;) {
    const ssize_t written = ::write(STDERR_FILENO, line.text + done, line.size - done);
    if (written <= 0) return;
    done += static_cast<size_t>(written);
  }
}

void on_fault(int number, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Place& place : places) {
    const uint64_t size_bytes = place.size_bytes.load(std::memory_order_acquire);
    if (at - place.base < size_bytes) say(place, at - place.base, info->si_code);
  }
  // Back to where the fault was, which comes again, and to whoever had the signal before: the kernel, mostly.
  ::sigaction(SIGBUS, &before, nullptr);
  if (info->si_code <= 0) ::raise(number);  // somebody has sent it
}

}  // namespace

PoolFaultNote::PoolFaultNote(const uint8_t* base, uint64_t size_bytes, const std::string& path) noexcept {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(SIGBUS, &action, &before);
  });
  for (size_t i = 0; i < kPoolsMax; ++i) {
    Place& place = places[i];
    if (place.taken.exchange(true)) continue;
    place_ = static_cast<int>(i);
    place.base = reinterpret_cast<uintptr_t>(base);
    std::strncpy(place.path, path.empty() ? "in memory" : path.c_str(), sizeof(place.path) - 1);
    place.size_bytes.store(size_bytes, std::memory_order_release);
    return;
  }
}

PoolFaultNote::~PoolFaultNote() {
  if (place_ < 0) return;
  places[place_].size_bytes.store(0, std::memory_order_release);
  places[place_].taken.store(false, std::memory_order_release);
}

}  // namespace kvstore
