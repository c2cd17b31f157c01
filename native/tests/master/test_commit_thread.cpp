#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "master/commit_thread.hpp"

using namespace kvstore;

namespace {

struct Directory {
  Directory() {
    char name[] = "/tmp/kvstore-commit-thread-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::string path;
};

std::unique_ptr<CommitThread> started(const Directory& directory, uint64_t file_bytes = 1u << 20) {
  auto log = std::make_unique<CommitLog>(CommitLog::Options{directory.path, file_bytes, 3});
  log->read(0);
  return std::make_unique<CommitThread>(std::move(log), 0);
}

// The outcomes of so many tickets, in the order in which they came.
std::vector<CommitThread::Outcome> wait_for(CommitThread& thread, size_t count) {
  std::vector<CommitThread::Outcome> all;
  while (all.size() < count) {
    pollfd item{thread.fd(), POLLIN, 0};
    if (::poll(&item, 1, 10000) != 1) {
      CHECK(!"no outcome in time");
      break;
    }
    for (auto& each : thread.take_finished()) all.push_back(std::move(each));
  }
  return all;
}

std::vector<std::string> stored(const Directory& directory) {
  CommitLog log({directory.path, 1u << 20, 3});
  std::vector<std::string> payloads;
  for (const CommitLog::Record& record : log.read(0).records) payloads.push_back(record.payload);
  return payloads;
}

}  // namespace

TEST(tickets_of_many_threads_are_durable_each_in_its_order) {
  const Directory directory;
  constexpr int kThreads = 4;
  constexpr int kTickets = 200;
  std::vector<CommitThread::Outcome> outcomes;
  {
    auto thread = started(directory);
    std::vector<std::thread> committing;
    for (int t = 0; t < kThreads; ++t)
      committing.emplace_back([&, t] {
        for (int i = 0; i < kTickets; ++i)
          thread->submit(uint64_t(t) * 1000 + i,
                         {std::to_string(t) + ":" + std::to_string(i), std::to_string(t) + "+"});
      });
    outcomes = wait_for(*thread, kThreads * kTickets);
    for (std::thread& each : committing) each.join();
    CHECK(thread->stop(10000));
  }
  const std::vector<std::string> payloads = stored(directory);
  CHECK_EQ(payloads.size(), size_t{2 * kThreads * kTickets});
  std::map<int, int> next;
  uint64_t sequence = 1;
  for (const CommitThread::Outcome& each : outcomes) {
    const int t = static_cast<int>(each.ticket / 1000);
    CHECK_EQ(each.error, 0);
    CHECK_EQ(each.first_sequence, sequence);
    CHECK_EQ(static_cast<int>(each.ticket % 1000), next[t]);
    CHECK(payloads[sequence - 1] == std::to_string(t) + ":" + std::to_string(next[t]++));
    CHECK(payloads[sequence] == std::to_string(t) + "+");
    sequence += 2;
  }
}

TEST(what_was_submitted_is_durable_when_the_thread_has_ended) {
  const Directory directory;
  {
    auto thread = started(directory);
    for (uint64_t i = 0; i < 50; ++i) thread->submit(i, {"commit"});
    CHECK(thread->stop(10000));
    CHECK(thread->stop(0));
  }
  CHECK_EQ(stored(directory).size(), size_t{50});
}

TEST(a_full_log_waits_for_room_and_then_goes_on) {
  const Directory directory;
  auto thread = started(directory, 64 << 10);
  const std::string large(60 << 10, 'x');
  for (uint64_t i = 0; i < 3; ++i) thread->submit(i, {large});
  for (const auto& each : wait_for(*thread, 3)) CHECK_EQ(each.error, 0);
  // Nothing comes free: refused after a while, and nothing is lost of what is there.
  thread->submit(3, {large});
  const auto refused = wait_for(*thread, 1);
  CHECK_EQ(refused[0].error, ENOSPC);
  CHECK_EQ(refused[0].first_sequence, uint64_t{0});
  CHECK(refused[0].text.find("wait to be carried over") != std::string::npos);
  // Room comes while the commit waits.
  thread->submit(4, {large});
  thread->release(1);
  const auto taken = wait_for(*thread, 1);
  CHECK_EQ(taken[0].error, 0);
  CHECK_EQ(taken[0].first_sequence, uint64_t{4});
}

TEST(a_disk_that_fails_is_told_to_every_ticket_and_used_again_when_it_works) {
  const Directory directory;
  const auto limit_files = [](rlim_t bytes) {
    const rlimit limit{bytes, RLIM_INFINITY};
    CHECK_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  };
  ::signal(SIGXFSZ, SIG_IGN);
  std::vector<std::string> expected{"first"};
  {
    auto thread = started(directory);
    thread->submit(0, {"first"});
    CHECK_EQ(wait_for(*thread, 1)[0].first_sequence, uint64_t{1});
    limit_files(16);
    for (uint64_t i = 1; i <= 20; ++i) thread->submit(i, {std::to_string(i)});
    for (const auto& each : wait_for(*thread, 20)) {
      CHECK_EQ(each.first_sequence, uint64_t{0});
      CHECK_EQ(each.error, EFBIG);
      CHECK(each.text.find("File too large") != std::string::npos);
    }
    limit_files(RLIM_INFINITY);
    for (uint64_t i = 1; i <= 20; ++i) {
      thread->submit(i, {std::to_string(i)});
      expected.push_back(std::to_string(i));
    }
    uint64_t sequence = 2;
    for (const auto& each : wait_for(*thread, 20)) CHECK_EQ(each.first_sequence, sequence++);
    CHECK(thread->stop(10000));
  }
  CHECK(stored(directory) == expected);
}

TEST_MAIN()
