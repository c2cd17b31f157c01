#include "base/worker_pool.hpp"

#include <algorithm>
#include <exception>

#include "base/cancellation.hpp"

namespace kvstore {

bool WorkerPool::run_one(const std::shared_ptr<Job>& job) {
  if (job->next == job->parts) return false;
  const size_t index = job->next++;
  if (job->next == job->parts) jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
  mutex_.unlock();
  bool failed = false;
  try {
    (*job->part)(index);
  } catch (...) {
    failed = true;
  }
  mutex_.lock();
  job->failed = job->failed || failed;
  if (++job->finished == job->parts) job->done.notify_all();
  return true;
}

void WorkerPool::start_threads(size_t wanted) noexcept {
  for (size_t missing = wanted > idle_threads_ ? wanted - idle_threads_ : 0;
       missing > 0 && threads_.size() < threads_max_; --missing) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::exception&) {  // no thread, or no memory for one: the caller does the work
      return;
    }
  }
}

void WorkerPool::post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    if (!closing_) {
      start_threads(1);
      if (!threads_.empty()) {
        posted_.push_back(std::move(task));  // where this throws the task is the caller's, as it was
        wanted_.notify_one();
        return;
      }
    }
  }
  task();
}

bool WorkerPool::run(size_t parts, const std::function<void(size_t)>& part) {
  if (parts == 0) return true;
  const auto job = std::make_shared<Job>();
  job->part = &part;
  job->parts = parts;
  MutexLock lock(mutex_);
  if (parts > 1 && !closing_) {
    jobs_.push_back(job);
    const size_t helpers = parts - 1;
    start_threads(helpers);
    for (size_t i = 0; i < helpers; ++i) wanted_.notify_one();
  }
  while (run_one(job)) {
  }
  const auto finished = [&] { return job->finished == job->parts; };
  if (Cancellation::current() == nullptr)
    while (!finished()) job->done.wait(mutex_);
  // Others work on the rest, and this thread alone can find out that the call has to end.
  while (!job->done.wait_for(mutex_, Cancellation::kSlice, finished)) {
    lock.unlock();
    Cancellation::look_now_and_then();
    lock.lock();
  }
  return !job->failed;
}

void WorkerPool::work() {
  MutexLock lock(mutex_);
  for (;;) {
    ++idle_threads_;
    while (!closing_ && jobs_.empty() && posted_.empty()) wanted_.wait(mutex_);
    --idle_threads_;
    if (closing_) return;
    if (!jobs_.empty()) {
      const std::shared_ptr<Job> job = jobs_.front();
      run_one(job);
      continue;
    }
    const std::function<void()> task = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

void WorkerPool::close() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    threads.swap(threads_);
  }
  wanted_.notify_all();
  for (std::thread& thread : threads) thread.join();
  for (;;) {
    std::function<void()> task;
    {
      const MutexLock lock(mutex_);
      if (posted_.empty()) return;
      task = std::move(posted_.front());
      posted_.pop_front();
    }
    task();
  }
}

size_t WorkerPool::thread_count() const {
  const MutexLock lock(mutex_);
  return threads_.size();
}

}  // namespace kvstore
