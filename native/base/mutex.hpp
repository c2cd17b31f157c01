// std::mutex and its company under names that clang's thread safety analysis understands. `make lint` has it check that what a mutex
// guards is touched under it; other compilers see plain types.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define KVSTORE_THREAD_SAFETY(x) __attribute__((x))
#else
#define KVSTORE_THREAD_SAFETY(x)
#endif

// Of a member: which mutex guards it, or what it points to.
#define GUARDED_BY(mutex) KVSTORE_THREAD_SAFETY(guarded_by(mutex))
#define PT_GUARDED_BY(mutex) KVSTORE_THREAD_SAFETY(pt_guarded_by(mutex))
// Of a function: its caller holds the mutex; its caller does not, because it takes it itself.
#define REQUIRES(...) KVSTORE_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) KVSTORE_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
// The analysis stays out of the function; a comment says why.
#define NO_THREAD_SAFETY_ANALYSIS KVSTORE_THREAD_SAFETY(no_thread_safety_analysis)
// For the classes below.
#define CAPABILITY(what) KVSTORE_THREAD_SAFETY(capability(what))
#define SCOPED_CAPABILITY KVSTORE_THREAD_SAFETY(scoped_lockable)
#define ACQUIRE(...) KVSTORE_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) KVSTORE_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) KVSTORE_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(mutex) KVSTORE_THREAD_SAFETY(assert_capability(mutex))

namespace kvstore {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  // Tells the analysis, which looks into no caller of a lambda, that the mutex is held here. Does nothing.
  void assert_held() const ASSERT_CAPABILITY(this) {}

 private:
  friend class MutexLock;
  friend class CondVar;
  std::mutex mutex_;
};

// Holds the mutex for a scope, but for what lies between an unlock() and the lock() that follows it.
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() ACQUIRE() { lock_.lock(); }
  void unlock() RELEASE() { lock_.unlock(); }

 private:
  std::unique_lock<std::mutex> lock_;
};

// Waits give the mutex up meanwhile, and may end for no reason, like those of std::condition_variable. A loop around a wait is checked;
// a condition that is passed as a lambda says assert_held() where it reads what is guarded.
class CondVar {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    Held held(mutex);
    waiting_.wait(held.lock);
  }
  template <typename Clock, typename Duration>
  std::cv_status wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& end)
      REQUIRES(mutex) {
    Held held(mutex);
    return waiting_.wait_until(held.lock, end);
  }
  // Whether the condition holds.
  template <typename Rep, typename Period, typename Condition>
  bool wait_for(Mutex& mutex, const std::chrono::duration<Rep, Period>& time, Condition condition)
      REQUIRES(mutex) {
    Held held(mutex);
    return waiting_.wait_for(held.lock, time, condition);
  }
  void notify_one() noexcept { waiting_.notify_one(); }
  void notify_all() noexcept { waiting_.notify_all(); }

 private:
  // Lends a mutex that is held to std::condition_variable, and leaves it held.
  struct Held {
    explicit Held(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Held() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable waiting_;
};

}  // namespace kvstore
