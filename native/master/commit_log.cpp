#include "master/commit_log.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/digest.hpp"

namespace kvstore {
namespace {

constexpr uint32_t kMagic = 0x3143564B;  // "KVC1"
constexpr uint64_t kAlignment = 32;
constexpr uint64_t kZeroBytes = 1u << 20;  // written at once when a file is made

struct Head {
  uint32_t magic;
  uint32_t payload_bytes;
  uint64_t sequence;
  uint32_t file_id;
  uint32_t in_group;
  uint32_t payload_crc;
  uint32_t head_crc;
};
static_assert(sizeof(Head) == CommitLog::kHeadBytes);
constexpr size_t kCheckedBytes = offsetof(Head, head_crc);

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void add_record(std::string& to, uint64_t sequence, uint32_t file_id, uint32_t in_group,
                const std::string& payload) {
  Head head{};
  head.magic = kMagic;
  head.payload_bytes = static_cast<uint32_t>(payload.size());
  head.sequence = sequence;
  head.file_id = file_id;
  head.in_group = in_group;
  head.payload_crc = crc32c(0, payload.data(), payload.size());
  head.head_crc = crc32c(0, &head, kCheckedBytes);
  to.append(reinterpret_cast<const char*>(&head), sizeof head);
  to.append(payload);
  to.append(aligned(to.size()) - to.size(), '\0');
}

// 0, or the errno. `write` may be cut short.
int write_all(int fd, const char* data, uint64_t size, uint64_t at) noexcept {
  while (size > 0) {
    const ssize_t written = ::pwrite(fd, data, size, static_cast<off_t>(at));
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (written == 0) return EIO;
    data += written;
    at += static_cast<uint64_t>(written);
    size -= static_cast<uint64_t>(written);
  }
  return 0;
}

int read_all(int fd, std::string& into, uint64_t size) {
  into.resize(size);
  uint64_t at = 0;
  while (at < size) {
    const ssize_t got = ::pread(fd, into.data() + at, size - at, static_cast<off_t>(at));
    if (got < 0) {
      if (errno == EINTR) continue;
      into.resize(at);
      return errno;
    }
    if (got == 0) break;
    at += static_cast<uint64_t>(got);
  }
  into.resize(at);
  return 0;
}

int sync(int fd, bool metadata) noexcept {
  while ((metadata ? ::fsync(fd) : ::fdatasync(fd)) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

}  // namespace

CommitLog::CommitLog(Options options) : options_(std::move(options)) {
  if (::mkdir(options_.directory.c_str(), 0700) != 0 && errno != EEXIST)
    fail(errno, "can't make " + options_.directory);
  lock();
}

CommitLog::~CommitLog() {
  for (File& file : files_) close(file);
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

void CommitLog::lock() {
  const std::string path = options_.directory + "/lock";
  lock_fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) fail(errno, "can't open " + path);
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) {
    // For whoever is refused; the lock itself is what counts.
    char name[256] = {};
    if (::gethostname(name, sizeof name - 1) != 0) name[0] = '\0';
    const std::string holder = "process " + std::to_string(::getpid()) + " on host " + name + "\n";
    if (::ftruncate(lock_fd_, 0) == 0) (void)write_all(lock_fd_, holder.data(), holder.size(), 0);
    return;
  }
  const int error = errno;
  std::string holder;
  if (error == EWOULDBLOCK) (void)read_all(lock_fd_, holder, 512);
  ::close(lock_fd_);
  lock_fd_ = -1;
  if (error != EWOULDBLOCK) fail(error, "can't lock " + path);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  throw LogInUse(holder.empty() ? "another process" : holder);
}

CommitLog::Contents CommitLog::read(uint64_t released) {
  Contents contents;
  std::vector<std::vector<Found>> of_file(options_.files_max);
  files_.clear();
  files_.resize(options_.files_max);
  std::vector<size_t> order;
  for (size_t i = 0; i < files_.size(); ++i) {
    files_[i].path = file_path(i);
    read_file(i, of_file[i], contents.trouble);
    last_file_id_ = std::max(last_file_id_, files_[i].id);
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return files_[a].id < files_[b].id; });
  std::vector<Found> found;
  for (const size_t i : order) {
    if (of_file[i].empty()) continue;
    files_[i].last_sequence = of_file[i].back().record.sequence;
    // What failed to be made durable in an older file was made so in this one.
    while (!found.empty() && found.back().record.sequence >= of_file[i].front().record.sequence)
      found.pop_back();
    for (Found& each : of_file[i]) found.push_back(std::move(each));
  }
  cut_unfinished(found);
  if (!order.empty() && files_[order.back()].ready && files_[order.back()].id != 0) {
    resumable_ = &files_[order.back()];
    if (!found.empty() && found.back().file == order.back()) resumable_->used_bytes = found.back().end;
  }
  next_sequence_ = released + 1;
  for (Found& each : found) {
    if (each.record.sequence <= released) continue;
    contents.lost += each.record.sequence - next_sequence_;
    next_sequence_ = each.record.sequence + 1;
    contents.records.push_back(std::move(each.record));
  }
  return contents;
}

// Records of one write can reach the disk in any order.
void CommitLog::cut_unfinished(std::vector<Found>& found) {
  if (found.empty()) return;
  const uint64_t last = found.back().record.sequence;
  uint64_t expected = last - found.back().in_group;  // the first of that write
  const auto begin = std::find_if(found.begin(), found.end(),
                                  [&](const Found& each) { return each.record.sequence >= expected; });
  auto whole = begin;
  while (whole != found.end() && whole->record.sequence == expected) ++whole, ++expected;
  found.erase(whole, found.end());
}

void CommitLog::read_file(size_t number, std::vector<Found>& into, std::string& trouble) {
  File& file = files_[number];
  file.fd = ::open(file.path.c_str(), O_RDWR | O_CLOEXEC);
  if (file.fd < 0) {
    if (errno == ENOENT) return;
    fail(
        errno,
        "can't open " +
            file.path);  // as many descriptors, or rights, as it takes bring it back: it must not be made anew
  }
  std::string bytes;
  if (const int error = read_all(file.fd, bytes, options_.file_bytes); error != 0)
    trouble = "can't read " + file.path + ": " + std::strerror(error);
  file.ready = bytes.size() == options_.file_bytes;
  for (uint64_t at = 0; at + kHeadBytes <= bytes.size();) {
    Head head;
    std::memcpy(&head, bytes.data() + at, sizeof head);
    const bool whole = head.magic == kMagic && head.head_crc == crc32c(0, &head, kCheckedBytes) &&
                       head.payload_bytes <= bytes.size() - at - kHeadBytes &&
                       head.payload_crc == crc32c(0, bytes.data() + at + kHeadBytes, head.payload_bytes);
    if (!whole) {
      at += kAlignment;  // damaged, torn, or left by an earlier use: the next record can be anywhere
      continue;
    }
    const uint64_t payload_at = at + kHeadBytes;
    at += aligned(kHeadBytes + head.payload_bytes);
    if (head.file_id < file.id) continue;  // left by an earlier use
    if (head.file_id > file.id) {
      file.id = head.file_id;
      into.clear();
    }
    // What was appended again, after half of a group had found no room.
    while (!into.empty() && into.back().record.sequence >= head.sequence) into.pop_back();
    into.push_back(
        {{head.sequence, bytes.substr(payload_at, head.payload_bytes)}, head.in_group, number, at});
  }
}

uint64_t CommitLog::append(const std::vector<std::string>& payloads, uint64_t released) {
  check_directory();
  uint64_t sequence = next_sequence_;
  for (size_t next = 0; next < payloads.size();) {
    const uint64_t first_bytes = aligned(kHeadBytes + payloads[next].size());
    if (first_bytes > options_.file_bytes)
      fail(EMSGSIZE, "a record has at most " + std::to_string(payload_bytes_max()) + " bytes");
    File& file = file_with_room(first_bytes, released);
    std::string bytes;
    uint32_t in_group = 0;
    while (next < payloads.size() &&
           file.used_bytes + bytes.size() + aligned(kHeadBytes + payloads[next].size()) <=
               options_.file_bytes)
      add_record(bytes, sequence++, file.id, in_group++, payloads[next++]);
    write(file, bytes);
    file.used_bytes += bytes.size();
    file.last_sequence = sequence - 1;
  }
  return std::exchange(next_sequence_, sequence);
}

// Files that were removed while they are open take bytes and syncs as ever, and nobody will find them again.
void CommitLog::check_directory() const {
  struct stat ours;
  struct stat named;
  const bool there =
      ::fstat(lock_fd_, &ours) == 0 && ::stat((options_.directory + "/lock").c_str(), &named) == 0;
  if (!there || ours.st_dev != named.st_dev || ours.st_ino != named.st_ino)
    fail(ENOENT, options_.directory + " was removed or replaced while it was in use");
}

bool CommitLog::is_there(const File& file) {
  struct stat found;
  return ::fstat(file.fd, &found) == 0 && found.st_nlink != 0;
}

CommitLog::File& CommitLog::file_with_room(uint64_t bytes, uint64_t released) {
  if (File* file = std::exchange(resumable_, nullptr)) resume(*file);
  if (current_ != nullptr && current_->used_bytes + bytes <= options_.file_bytes) return *current_;
  File* next = nullptr;
  for (File& file : files_) {
    if (&file == current_ || file.last_sequence > released) continue;
    // One that is there already before one that is to be made; of those the one that was used longest ago.
    if (next == nullptr || std::make_pair(!file.ready, file.id) < std::make_pair(!next->ready, next->id))
      next = &file;
  }
  if (next == nullptr)
    throw LogFull("all " + std::to_string(options_.files_max) + " files of the commit log in " +
                  options_.directory + " wait to be carried over");
  if (!next->ready) make(*next);
  next->id = ++last_file_id_;
  next->used_bytes = 0;
  next->last_sequence = 0;
  current_ = next;
  return *next;
}

// Behind what counts may lie what was never finished: it must not come back once the file has grown up to it.
void CommitLog::resume(File& file) {
  int error = write_zeros(file.fd, file.used_bytes, options_.file_bytes);
  if (error == 0) error = sync(file.fd, true);
  if (error == 0) {
    current_ = &file;
    return;
  }
  file.ready = false;
  fail(error, "can't write " + file.path);
}

bool CommitLog::prepare(uint64_t released) {
  for (File& file : files_) {
    if (file.ready || file.last_sequence > released || &file == current_ || &file == resumable_) continue;
    make(file);
    return true;
  }
  return false;
}

// After a failure the old file goes first: its pages in memory may not be what is on the disk.
void CommitLog::make(File& file) {
  close(file);
  if (::unlink(file.path.c_str()) != 0 && errno != ENOENT) fail(errno, "can't remove " + file.path);
  file.fd = ::open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file.fd < 0) fail(errno, "can't make " + file.path);
  int error = write_zeros(file.fd, 0, options_.file_bytes);
  if (error == 0) error = sync(file.fd, true);
  if (error != 0) {
    close(file);
    ::unlink(file.path.c_str());
    fail(error, "can't make " + file.path);
  }
  sync_directory();
  file.ready = true;
}

int CommitLog::write_zeros(int fd, uint64_t from, uint64_t to) {
  const std::string zeros(std::min(kZeroBytes, to - from), '\0');
  int error = 0;
  for (; error == 0 && from < to; from += zeros.size())
    error = write_all(fd, zeros.data(), std::min<uint64_t>(zeros.size(), to - from), from);
  return error;
}

void CommitLog::write(File& file, const std::string& bytes) {
  int error = write_all(file.fd, bytes.data(), bytes.size(), file.used_bytes);
  const bool written = error == 0;
  if (written) error = sync(file.fd, false);
  if (error == 0 && !is_there(file)) error = ENOENT;
  if (error == 0) return;
  file.ready = false;
  current_ = nullptr;
  fail(error, std::string("can't ") + (written ? "sync " : "write ") + file.path);
}

void CommitLog::sync_directory() const {
  const int fd = ::open(options_.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(errno, "can't open " + options_.directory);
  const int error = sync(fd, true);
  ::close(fd);
  if (error != 0) fail(error, "can't sync " + options_.directory);
}

void CommitLog::close(File& file) noexcept {
  if (file.fd >= 0) ::close(file.fd);
  file.fd = -1;
  file.ready = false;
}

std::string CommitLog::file_path(size_t number) const {
  return options_.directory + "/" + std::to_string(number) + ".commits";
}

void CommitLog::fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace kvstore
