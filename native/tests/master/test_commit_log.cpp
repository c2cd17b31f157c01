#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "check.hpp"
#include "master/commit_log.hpp"

using namespace kvstore;

namespace {

// Hears of each sync of the log, before it is made; 0, or the errno that it fails with.
std::function<int(int fd)> on_sync;

}  // namespace

// In place of libc's.
extern "C" int fdatasync(int fd) {
  if (const int error = on_sync ? on_sync(fd) : 0; error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

namespace {

constexpr uint64_t kFileBytes = 16384;
constexpr uint32_t kFiles = 3;

// A directory that goes with the test.
struct Directory {
  Directory() {
    char name[] = "/tmp/kvstore-commit-log-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Directory() {
    for (uint32_t i = 0; i < kFiles; ++i) ::unlink(file(i).c_str());
    ::unlink((path + "/lock").c_str());
    ::rmdir(path.c_str());
  }
  std::string file(uint32_t i) const { return path + "/" + std::to_string(i) + ".commits"; }
  CommitLog::Options options() const { return {path, kFileBytes, kFiles}; }

  std::string path;
};

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void set_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string payload(uint64_t number, size_t bytes = 300) {
  std::string text = "commit " + std::to_string(number) + " ";
  while (text.size() < bytes) text += text;
  return text.substr(0, bytes);
}

// What a new process finds, as "1 2 3"; each with the payload of its number.
std::string found(const Directory& directory, uint64_t released = 0, uint64_t lost = 0) {
  CommitLog log(directory.options());
  const CommitLog::Contents contents = log.read(released);
  CHECK_EQ(contents.lost, lost);
  std::string text;
  for (const CommitLog::Record& record : contents.records) {
    CHECK(record.payload == payload(record.sequence, record.payload.size()));
    text += (text.empty() ? "" : " ") + std::to_string(record.sequence);
  }
  return text;
}

// In the payload of a commit, wherever the log has it.
void flip_a_bit(const Directory& directory, uint64_t number) {
  for (uint32_t i = 0; i < kFiles; ++i) {
    std::string bytes = bytes_of(directory.file(i));
    const size_t at = bytes.find("commit " + std::to_string(number) + " ");
    if (at == std::string::npos) continue;
    bytes[at + 40] ^= 1;
    set_bytes(directory.file(i), bytes);
    return;
  }
  CHECK(!"no file has the commit");
}

// One commit a write.
void append_one_by_one(CommitLog& log, uint64_t first, uint64_t last, uint64_t released = 0) {
  for (uint64_t i = first; i <= last; ++i) CHECK_EQ(log.append({payload(i)}, released), i);
}

}  // namespace

TEST(what_was_appended_is_read_in_order_and_numbered_on) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    CHECK(log.read(0).records.empty());
    CHECK_EQ(log.append({payload(1), payload(2, 0), payload(3, 5000)}, 0), uint64_t{1});
    CHECK_EQ(log.append({payload(4)}, 0), uint64_t{4});
  }
  CHECK_EQ(found(directory), "1 2 3 4");
  CHECK_EQ(found(directory, 2), "3 4");
  CHECK_EQ(found(directory, 4), "");
  CommitLog log(directory.options());
  log.read(2);
  CHECK_EQ(log.append({payload(5)}, 2), uint64_t{5});
}

TEST(numbers_go_on_after_what_was_released_where_the_log_is_empty) {
  const Directory directory;
  CommitLog log(directory.options());
  log.read(41);
  CHECK_EQ(log.append({payload(42)}, 41), uint64_t{42});
}

TEST(a_damaged_commit_costs_itself_and_is_told) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 60);
  }
  flip_a_bit(directory, 7);
  flip_a_bit(directory, 8);
  flip_a_bit(directory, 52);
  std::string expected;
  for (int i = 1; i <= 60; ++i)
    if (i != 7 && i != 8 && i != 52) expected += (i == 1 ? "" : " ") + std::to_string(i);
  CHECK_EQ(found(directory, 0, 3), expected);
  CHECK_EQ(found(directory, 10, 1), expected.substr(expected.find("11")));
}

TEST(a_damaged_head_costs_its_commit_wherever_it_is_hit) {
  for (uint64_t byte = 0; byte < CommitLog::kHeadBytes; ++byte) {
    const Directory directory;
    {
      CommitLog log(directory.options());
      log.read(0);
      append_one_by_one(log, 1, 3);
    }
    std::string bytes = bytes_of(directory.file(0));
    bytes[bytes.find("commit 2 ") - CommitLog::kHeadBytes + byte] ^= 0x20;
    set_bytes(directory.file(0), bytes);
    CHECK_EQ(found(directory, 0, 1), "1 3");
  }
}

TEST(a_write_that_was_cut_off_anywhere_leaves_what_was_durable_before) {
  const Directory directory;
  uint64_t durable_bytes = 0;
  {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 2);
    durable_bytes = bytes_of(directory.file(0)).find_last_not_of('\0') + 1;
    CHECK_EQ(log.append({payload(3), payload(4), payload(5)}, 0), uint64_t{3});
  }
  const std::string whole = bytes_of(directory.file(0));
  const size_t end = whole.find_last_not_of('\0') + 1;
  for (size_t cut = durable_bytes; cut < end; cut += 7) {
    std::string bytes = whole;
    bytes.replace(cut, bytes.size() - cut, bytes.size() - cut, '\0');
    set_bytes(directory.file(0), bytes);
    const std::string left = found(directory);
    CHECK(left == "1 2" || left == "1 2 3" || left == "1 2 3 4");
  }
}

TEST(of_a_last_write_that_reached_the_disk_in_part_nothing_behind_its_first_hole_counts) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 2);
    log.append({payload(3), payload(4), payload(5), payload(6)}, 0);
  }
  flip_a_bit(directory, 4);
  CHECK_EQ(found(directory), "1 2 3");
  // What is appended now takes the place of the rest for good.
  {
    CommitLog log(directory.options());
    log.read(0);
    CHECK_EQ(log.append({payload(4)}, 0), uint64_t{4});
  }
  CHECK_EQ(found(directory), "1 2 3 4");
  flip_a_bit(directory, 3);
  CHECK_EQ(found(directory, 0, 1), "1 2 4");
}

TEST(files_are_used_again_and_nothing_of_their_former_use_comes_back) {
  const Directory directory;
  std::mt19937 random(7);
  std::fprintf(stderr, "seed 7\n");
  uint64_t last = 0;
  uint64_t released = 0;
  for (int life = 0; life < 40; ++life) {
    CommitLog log(directory.options());
    const CommitLog::Contents contents = log.read(released);
    CHECK_EQ(contents.lost, uint64_t{0});
    CHECK_EQ(contents.records.size(), last - released);
    for (int write = 0; write < 12; ++write) {
      std::vector<std::string> group;
      for (uint32_t i = 0; i < 1 + random() % 5; ++i) group.push_back(payload(last + 1 + i, random() % 900));
      CHECK_EQ(log.append(group, released), last + 1);
      last += group.size();
      released = last - std::min<uint64_t>(last, random() % 12);
    }
  }
  struct stat file;
  for (uint32_t i = 0; i < kFiles; ++i)
    if (::stat(directory.file(i).c_str(), &file) == 0) CHECK_EQ(uint64_t(file.st_size), kFileBytes);
}

TEST(a_full_log_takes_nothing_until_something_is_released) {
  const Directory directory;
  CommitLog log(directory.options());
  log.read(0);
  uint64_t last = 0;
  try {
    while (last < 100) {
      log.append({payload(last + 1, 3000)}, 0);
      ++last;
    }
  } catch (const LogFull&) {
  }
  CHECK_EQ(last, uint64_t{kFiles * (kFileBytes / 3040)});
  CHECK_THROWS(log.append({payload(last + 1, 3000)}, 0), LogFull);
  // The file that is written holds the last; of the others only the first is free after this.
  const uint64_t in_a_file = kFileBytes / 3040;
  CHECK_EQ(log.append({payload(last + 1, 3000)}, in_a_file), last + 1);
}

TEST(a_group_larger_than_what_is_left_of_a_file_goes_on_in_the_next) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    log.read(0);
    std::vector<std::string> group;
    for (uint64_t i = 1; i <= 10; ++i) group.push_back(payload(i, 3000));
    CHECK_EQ(log.append(group, 0), uint64_t{1});
  }
  CHECK_EQ(found(directory), "1 2 3 4 5 6 7 8 9 10");
}

TEST(a_commit_larger_than_a_file_is_refused_and_costs_nothing) {
  const Directory directory;
  CommitLog log(directory.options());
  log.read(0);
  CHECK_THROWS(log.append({std::string(log.payload_bytes_max() + 1, 'x')}, 0), std::system_error);
  CHECK_EQ(log.append({std::string(log.payload_bytes_max(), 'x')}, 0), uint64_t{1});
}

TEST(half_a_group_that_found_no_room_is_written_again_whole) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    log.read(0);
    for (uint64_t i = 1; i <= 14; ++i) log.append({payload(i, 3000)}, 0);
    // One has room in the last file, two have not.
    CHECK_THROWS(log.append({payload(99, 3000), payload(98, 3000), payload(97, 3000)}, 0), LogFull);
    CHECK_EQ(log.append({payload(15, 1000), payload(16, 3000)}, 10), uint64_t{15});
  }
  CHECK_EQ(found(directory, 10), "11 12 13 14 15 16");
}

// In a child process: the limit on the size of files can't be taken back.
TEST(after_a_write_that_failed_the_same_commits_go_into_another_file) {
  const Directory directory;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    CommitLog log(directory.options());
    log.read(0);
    while (log.prepare(0)) {
    }
    append_one_by_one(log, 1, 3);
    rlimit limit{16, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int refused = 0;
    for (int i = 0; i < 2; ++i) try {
        log.append({payload(4)}, 0);
      } catch (const std::system_error& error) {
        refused += error.code().value() == EFBIG;
      }
    limit.rlim_cur = RLIM_INFINITY;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const bool same = log.append({payload(4), payload(5)}, 0) == 4;
    ::_exit(refused == 2 && same ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(found(directory), "1 2 3 4 5");
}

TEST(nothing_is_appended_in_a_directory_that_was_moved_away_and_all_of_it_when_it_is_back) {
  const Directory directory;
  const std::string commits = directory.options().directory;
  const auto refusal = [&](CommitLog& log) {
    try {
      log.append({payload(4)}, 0);
    } catch (const std::system_error& error) {
      return error.code().value();
    }
    return 0;
  };
  {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 3);
    CHECK_EQ(::rename(commits.c_str(), (commits + ".away").c_str()), 0);
    CHECK_EQ(refusal(log), ENOENT);
    CHECK_EQ(::mkdir(commits.c_str(), 0700), 0);
    CHECK_EQ(refusal(log), ENOENT);
    CHECK_EQ(::rmdir(commits.c_str()), 0);
    CHECK_EQ(::rename((commits + ".away").c_str(), commits.c_str()), 0);
    append_one_by_one(log, 4, 5);
  }
  CHECK_EQ(found(directory), "1 2 3 4 5");
}

TEST(what_was_written_into_a_removed_file_does_not_count_and_goes_into_another_one) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 3);
    CHECK_EQ(::unlink(directory.file(0).c_str()), 0);
    bool refused = false;
    try {
      log.append({payload(4)}, 3);
    } catch (const std::system_error& error) {
      refused = error.code().value() == ENOENT;
    }
    CHECK(refused);
    append_one_by_one(log, 4, 5, 3);
  }
  CHECK_EQ(found(directory, 3), "4 5");
}

TEST(every_write_is_synced_whole_before_it_is_told) {
  const Directory directory;
  std::vector<std::string> synced;  // what the file holds then
  {
    CommitLog log(directory.options());
    log.read(0);
    on_sync = [&](int fd) {
      std::string bytes(kFileBytes, '\0');
      CHECK_EQ(::pread(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(kFileBytes));
      synced.push_back(bytes);
      return 0;
    };
    for (uint64_t i = 1; i <= 20; i += 2) {
      CHECK_EQ(log.append({payload(i), payload(i + 1)}, 0), i);
      CHECK_EQ(synced.size(), size_t{i / 2 + 1});
      CHECK(synced.back().find(payload(i)) != std::string::npos);
      CHECK(synced.back().find(payload(i + 1)) != std::string::npos);
    }
    on_sync = nullptr;
  }
  CHECK_EQ(found(directory, 18), "19 20");
}

// The kernel tells of a failed sync once, and forgets what it could not write.
TEST(after_a_sync_that_failed_nothing_more_is_written_into_that_file) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 3);
    on_sync = [](int) { return EIO; };
    CHECK_THROWS(log.append({payload(4)}, 0), std::system_error);
    on_sync = nullptr;
    CHECK_EQ(log.append({payload(4), payload(5)}, 0), uint64_t{4});
  }
  CHECK(bytes_of(directory.file(0)).find(payload(3)) != std::string::npos);
  CHECK(bytes_of(directory.file(1)).find(payload(4)) != std::string::npos);
  CHECK(bytes_of(directory.file(1)).find(payload(5)) != std::string::npos);
  CHECK_EQ(found(directory), "1 2 3 4 5");
}

TEST(what_a_newer_file_says_of_a_commit_counts) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 3);
    // Say that this write failed, and was made again in the file that follows.
    log.append({"another commit 4", "another commit 5"}, 0);
  }
  const Directory later;
  {
    CommitLog log(later.options());
    log.read(2);
    log.append({payload(3, 16300)}, 2);  // fills a file
    log.append({payload(4)}, 2);
  }
  set_bytes(directory.file(1), bytes_of(later.file(1)));
  CHECK_EQ(found(directory), "1 2 3 4");
}

TEST(a_second_process_is_kept_out_and_told_who_is_there) {
  const Directory directory;
  const CommitLog log(directory.options());
  std::string text;
  try {
    CommitLog second(directory.options());
  } catch (const LogInUse& error) {
    text = error.what();
  }
  CHECK(text.find("process " + std::to_string(::getpid())) == 0);
}

TEST(the_directory_is_free_after_a_process_was_killed) {
  const Directory directory;
  int ready[2];
  CHECK_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 20);
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte;
  CHECK_EQ(::read(ready[0], &byte, 1), ssize_t{1});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_EQ(found(directory, 17), "18 19 20");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(a_file_of_another_size_is_read_and_made_anew) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 3);
  }
  set_bytes(directory.file(0), bytes_of(directory.file(0)).substr(0, 5000));  // a crash while it was made
  set_bytes(directory.file(1), "");
  {
    CommitLog log(directory.options());
    CHECK_EQ(log.read(0).records.size(), size_t{3});
    CHECK_EQ(log.append({payload(4)}, 0), uint64_t{4});
  }
  CHECK_EQ(found(directory), "1 2 3 4");
  CHECK_EQ(bytes_of(directory.file(0)).size(), size_t{5000});
  CHECK_EQ(bytes_of(directory.file(1)).size(), size_t{kFileBytes});
}

TEST_MAIN()

TEST(a_file_that_can_not_be_opened_now_ends_the_reading_and_is_kept) {
  const Directory directory;
  {
    CommitLog log(directory.options());
    log.read(0);
    append_one_by_one(log, 1, 3);
  }
  {
    CommitLog log(directory.options());
    rlimit before{};
    CHECK_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{0, before.rlim_max};
    CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    int error = 0;
    try {
      log.read(0);
    } catch (const std::system_error& e) {
      error = e.code().value();
    }
    CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(error, EMFILE);
  }
  CHECK_EQ(found(directory), "1 2 3");
}
