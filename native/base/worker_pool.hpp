// A few persistent threads that help callers run the parts of a batch at the same time.
//
// Thread-safe. A caller always works on its own parts too, so that a call needs no free worker to finish, parts may themselves
// call run(), and nothing of a call is left running when run() returns.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

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
  struct Job {
    const std::function<void(size_t)>* part;
    size_t parts;
    size_t next = 0;      // the next part to hand out
    size_t finished = 0;  // parts that have returned
    bool failed = false;
    std::condition_variable done;
  };

  void work();
  void start_threads(
      size_t wanted) noexcept;  // the lock is held; jobs are in the queue, so it must not throw
  // Takes one part of the job and runs it. False when all are handed out. The lock is held on entry and on return.
  bool run_one(const std::shared_ptr<Job>& job, std::unique_lock<std::mutex>& lock);

  const size_t threads_max_;
  mutable std::mutex mutex_;
  std::condition_variable wanted_;
  std::deque<std::shared_ptr<Job>> jobs_;  // with parts not handed out yet
  std::deque<std::function<void()>> posted_;
  std::vector<std::thread> threads_;
  size_t idle_threads_ = 0;
  bool closing_ = false;
};

}  // namespace kvstore
