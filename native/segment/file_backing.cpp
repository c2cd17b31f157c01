#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

#include "segment/pool_backing.hpp"

namespace kvstore {
namespace {

constexpr uint64_t kTmpfs = 0x01021994;
constexpr uint64_t kHugetlbfs = 0x958458f6;

std::string in_mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// The process that holds the lock on the file, as far as this pid namespace sees it.
std::string lock_holder(const struct stat& file) {
  std::unique_ptr<FILE, int (*)(FILE*)> locks(::fopen("/proc/locks", "re"), &::fclose);
  char line[512];
  while (locks != nullptr && ::fgets(line, sizeof(line), locks.get()) != nullptr) {
    char kind[16] = {};
    long pid = 0;
    unsigned major_number = 0, minor_number = 0;
    uint64_t inode = 0;
    if (::sscanf(line, "%*s %15s %*s %*s %ld %x:%x:%" SCNu64, kind, &pid, &major_number, &minor_number,
                 &inode) == 5 &&
        std::strcmp(kind, "FLOCK") == 0 && inode == file.st_ino && major_number == major(file.st_dev) &&
        minor_number == minor(file.st_dev) && pid > 0)
      return "pid " + std::to_string(pid);
  }
  return "of another container, its pid is not seen from here";
}

class FileBacking : public PoolBacking {
 public:
  FileBacking(const std::string& path, uint64_t bytes, HugePages pages, const ExaminePool& examine)
      : path_(path) {
    open_or_make();
    try {
      lock();
      check_file_system(bytes, pages);
      const struct stat file = status();
      adopted_ = file.st_size > 0;
      if (adopted_) check_adopted(static_cast<uint64_t>(file.st_size), examine);
      check_room();
      if (!adopted_) size();
    } catch (...) {
      if (made_ && locked_) ::unlink(path_.c_str());  // another process may have locked what we made
      ::close(fd_);
      throw;
    }
  }
  ~FileBacking() override { ::close(fd_); }
  FileBacking(const FileBacking&) = delete;
  FileBacking& operator=(const FileBacking&) = delete;

  int fd() const override { return fd_; }
  uint64_t file_bytes() const override { return file_bytes_; }
  uint64_t reserved_page_bytes() const override { return page_bytes_; }
  bool adopted() const override { return adopted_; }
  uint64_t allocated_bytes() const override { return static_cast<uint64_t>(status().st_blocks) * 512; }
  // A file of tmpfs or hugetlbfs can't be sealed: its mode and its owner are what keeps others from it.
  void seal() override {}
  // The lock is the file description's: without this it would last as long as the memory, which readers in flight may hold.
  void let_go() noexcept override { ::flock(fd_, LOCK_UN); }
  void abandon() noexcept override {
    if (!adopted_) ::unlink(path_.c_str());
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw PoolRefusedError("the pool file " + path_ + " " + why);
  }
  [[noreturn]] void no_place(const std::string& why) const {
    throw PoolPlaceError("no pool file can be at " + path_ + ": " + why);
  }
  struct stat status() const {
    struct stat file{};
    if (::fstat(fd_, &file) != 0)
      throw std::system_error(errno, std::generic_category(), "memory pool: fstat of " + path_);
    return file;
  }

  void open_or_make() {
    constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;  // a fifo there must not hold us up
    fd_ = ::open(path_.c_str(), kFlags);
    if (fd_ < 0 && errno == ENOENT) {
      fd_ = ::open(path_.c_str(), kFlags | O_CREAT | O_EXCL, 0600);
      made_ = fd_ >= 0;
      if (fd_ < 0 && errno == EEXIST) fd_ = ::open(path_.c_str(), kFlags);  // another process was faster
    }
    if (fd_ >= 0) return;
    if (errno == ELOOP) refuse("is a symbolic link: name the file itself in pool_path");
    if (errno == ENOENT || errno == ENOTDIR)
      no_place("its directory does not exist; make it, or choose another pool_path");
    if (errno == EISDIR) no_place("that is a directory; name a file in it");
    if (errno == EACCES && ::access(path_.c_str(), F_OK) == 0)
      refuse("is not for user " + std::to_string(::geteuid()) +
             " to open: remove it, or choose another pool_path");
    no_place(std::string(std::strerror(errno)) + "; choose another pool_path");
  }

  void lock() {
    const struct stat file = status();
    if (!S_ISREG(file.st_mode)) refuse("is not a regular file: choose another pool_path");
    if (file.st_uid != ::geteuid())
      refuse("belongs to user " + std::to_string(file.st_uid) + ", and this is user " +
             std::to_string(::geteuid()) +
             ": run as that user, remove the file, or choose another pool_path");
    if ((file.st_mode & 077) != 0 && !made_) {
      std::array<char, 8> mode{};
      std::snprintf(mode.data(), mode.size(), "%04o", file.st_mode & 07777u);
      refuse(std::string("may be used by others (mode ") + mode.data() +
             ", not 0600): remove it, which costs warm pages only");
    }
    if (file.st_nlink > 1) refuse("has a second name (a hard link): remove one of them");
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK)
        throw std::system_error(errno, std::generic_category(), "memory pool: locking " + path_);
      refuse("is in use by another process (" + lock_holder(file) +
             "): stop it, or give this segment its own with pool_path");
    }
    locked_ = true;
    // Between opening and locking it may have been removed, and another made.
    struct stat named{};
    if (::lstat(path_.c_str(), &named) != 0 || named.st_ino != file.st_ino || named.st_dev != file.st_dev)
      refuse("was replaced while it was being opened: start again");
  }

  void check_file_system(uint64_t bytes, HugePages pages) {
    struct statfs system{};
    if (::fstatfs(fd_, &system) != 0)
      throw std::system_error(errno, std::generic_category(), "memory pool: fstatfs of " + path_);
    const auto type = static_cast<uint64_t>(system.f_type);
    if (type != kTmpfs && type != kHugetlbfs)
      no_place(
          "it is neither on tmpfs nor on hugetlbfs, and a pool on a disk would be written back to it; choose "
          "a path in /dev/shm, "
          "or mount a tmpfs");
    const uint64_t wanted_page = ::kvstore::reserved_page_bytes(pages);
    const auto block_bytes = static_cast<uint64_t>(system.f_bsize);
    if (type == kHugetlbfs) page_bytes_ = block_bytes;
    if (wanted_page != 0 && wanted_page != page_bytes_)
      no_place("huge_pages asks for pages of " + in_mib(wanted_page) + " and it is on " +
               (page_bytes_ == 0 ? "tmpfs" : "hugetlbfs with pages of " + in_mib(page_bytes_)) +
               "; mount hugetlbfs with pagesize=" + (wanted_page == 1ull << 30 ? "1G" : "2M") +
               " and name a file there, set pool_path to off, or huge_pages to thp");
    const uint64_t unit = page_bytes_ == 0 ? static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) : page_bytes_;
    file_bytes_ = (bytes + unit - 1) / unit * unit;
  }

  // What it has already is not needed again.
  void check_room() const {
    const uint64_t had = allocated_bytes();
    const uint64_t more = file_bytes_ - (had < file_bytes_ ? had : file_bytes_);
    if (page_bytes_ != 0) {
      const std::string limit = huge_page_limit_in_the_way(more, page_bytes_);
      if (!limit.empty())
        throw PoolLimitError("a pool file of " + in_mib(file_bytes_) + " can't be had: " + limit);
    }
    struct statfs system{};
    if (::fstatfs(fd_, &system) != 0)
      throw std::system_error(errno, std::generic_category(), "memory pool: fstatfs of " + path_);
    const auto block_bytes = static_cast<uint64_t>(system.f_bsize);
    // No blocks at all: the file system has no limit of its own.
    const uint64_t room = static_cast<uint64_t>(system.f_bavail) * block_bytes;
    if (system.f_blocks != 0 && more > room)
      no_place("the file system has " + in_mib(room) + " free of " +
               in_mib(static_cast<uint64_t>(system.f_blocks) * block_bytes) + " and " + in_mib(more) +
               " are needed; enlarge it (mount -o remount,size=..., or the container's shm size), lower the "
               "capacity, or "
               "choose another pool_path");
  }

  void check_adopted(uint64_t size_bytes, const ExaminePool& examine) const {
    if (examine && size_bytes >= kPoolHeadBytes) {
      std::array<uint8_t, kPoolHeadBytes> head{};
      read_head(head.data());
      examine(head.data(), size_bytes);
    }
    if (size_bytes != file_bytes_)
      refuse("has " + std::to_string(size_bytes) + " bytes and the settings make it " +
             std::to_string(file_bytes_) +
             ": set capacity as it was, or remove the file, which costs warm pages only");
  }

  void read_head(uint8_t* head) const {
    for (uint64_t at = 0; at < kPoolHeadBytes;) {
      const ssize_t got = ::pread(fd_, head + at, kPoolHeadBytes - at, static_cast<off_t>(at));
      if (got > 0)
        at += static_cast<uint64_t>(got);
      else if (got == 0 || errno != EINTR)
        throw std::system_error(got == 0 ? EIO : errno, std::generic_category(),
                                "memory pool: reading " + path_);
    }
  }

  void size() {
    if (::ftruncate(fd_, static_cast<off_t>(file_bytes_)) != 0)
      throw std::system_error(errno, std::generic_category(), "memory pool: sizing " + path_);
  }

  const std::string path_;
  int fd_ = -1;
  bool made_ = false;
  bool locked_ = false;
  bool adopted_ = false;
  uint64_t file_bytes_ = 0;
  uint64_t page_bytes_ = 0;
};

}  // namespace

std::unique_ptr<PoolBacking> make_file_backing(const std::string& path, uint64_t bytes, HugePages pages,
                                               const ExaminePool& examine) {
  return std::make_unique<FileBacking>(path, bytes, pages, examine);
}

}  // namespace kvstore
