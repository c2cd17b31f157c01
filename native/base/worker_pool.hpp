// A few persistent threads that help callers run the parts of a batch at the same time.
//
// Thread-safe. A caller always works on its own parts too, so that a call needs no free worker to finish, parts may themselves
// call run(), and nothing of a call is left running when run() returns.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.hpp"

namespace kvstore {

class WorkerPool {
 public:
  explicit WorkerPool(size_t threads_max) : threads_max_(threads_max) {}
  ~WorkerPool() { close(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Calls part(0) .. part(parts - 1), each once, and returns when all have returned. An exception of a part is dropped after
  // the others have run, and false is returned. Threads are started as they are needed.
  bool run(size_t parts, const std::function<void(size_t)>& part);

  // Runs the task on a worker, some time; on the closing thread when that comes first. For what must not cost a caller its
  // deadline, like taking apart a large map. The task must not throw.
  void post(std::function<void()> task);

  // Joins all threads. run() and post() keep working, on the calling thread alone.
  void close();

  size_t thread_count() const;

 private:
  struct Job {  // guarded by mutex_
    const std::function<void(size_t)>* part;
    size_t parts;
    size_t next = 0;      // the next part to hand out
    size_t finished = 0;  // parts that have returned
    bool failed = false;
    CondVar done;
  };

  void work() EXCLUDES(mutex_);
  // Jobs are in the queue, so it must not throw.
  void start_threads(size_t wanted) noexcept REQUIRES(mutex_);
  // Takes one part of the job and runs it, without the lock. False when all are handed out.
  bool run_one(const std::shared_ptr<Job>& job) REQUIRES(mutex_);

  const size_t threads_max_;
  mutable Mutex mutex_;
  CondVar wanted_;
  std::deque<std::shared_ptr<Job>> jobs_ GUARDED_BY(mutex_);  // with parts not handed out yet
  std::deque<std::function<void()>> posted_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
  size_t idle_threads_ GUARDED_BY(mutex_) = 0;
  bool closing_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvstore
