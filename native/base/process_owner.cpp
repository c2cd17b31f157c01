#include "base/process_owner.hpp"

#include <pthread.h>

#include <atomic>

namespace kvstore {
namespace {

std::atomic<uint64_t> generation{0};

// In the child, before fork() returns there: nothing else runs yet.
void count_fork() { generation.fetch_add(1, std::memory_order_relaxed); }

[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, &count_fork);

}  // namespace

uint64_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

}  // namespace kvstore
