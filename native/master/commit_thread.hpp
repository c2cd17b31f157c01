// The thread that writes the commit log: whatever waits goes into one write and one sync.
//
// Nobody waits for the disk but this thread. Who commits gets a ticket's outcome from take_finished(), when fd() is readable. A disk
// that hangs keeps the thread and nothing else: stop() leaves it behind.
//
// Threads: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "master/commit_log.hpp"

namespace kvstore {

class CommitThread {
 public:
  struct Outcome {
    uint64_t ticket;
    uint64_t first_sequence;  // of the ticket's records; 0: they are not durable, and may be committed again
    int error;                // an errno, or 0
    std::string text;         // what could not be done
  };

  // `log` has been read, up to `released`; from here on it is the thread's. Throws std::system_error.
  CommitThread(std::unique_ptr<CommitLog> log, uint64_t released);
  ~CommitThread();
  CommitThread(const CommitThread&) = delete;
  CommitThread& operator=(const CommitThread&) = delete;

  // An eventfd: readable while take_finished() has something to say. Valid as long as this object.
  int fd() const;
  // Tickets are made durable in the order in which they come; those that wait together succeed or fail together.
  void submit(uint64_t ticket, std::vector<std::string> payloads);
  std::vector<Outcome> take_finished();
  // Records up to `sequence` are needed no more.
  void release(uint64_t sequence);
  // What has been submitted is finished first. Whether the thread has ended within the time, and the directory is free again.
  bool stop(uint32_t timeout_ms);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace kvstore
