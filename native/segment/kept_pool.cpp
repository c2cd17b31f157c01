#include "segment/kept_pool.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "segment/slot_table.hpp"

namespace kvstore {
namespace {

constexpr uint64_t kJournalEntriesMin = 4096;
constexpr uint64_t kJournalEntriesMax = 1u << 20;  // 32 MiB
constexpr uint64_t kBytesAnEntry = 16384;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kTmpfs = 0x01021994;
constexpr uint64_t kHugetlbfs = 0x958458f6;

uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), "memory pool: " + what);
}

// What an earlier process has left is of no use.
struct OfNoUse {
  std::string reason;
};

FileIdentity file_identity(const std::string& path) {
  struct stat file{};
  if (::stat(path.c_str(), &file) != 0) fail("stat of " + path);
  return {static_cast<uint64_t>(file.st_dev), static_cast<uint64_t>(file.st_ino)};
}

// Closes what it is given.
struct OpenFile {
  int fd;
  explicit OpenFile(int fd_in) : fd(fd_in) {}
  ~OpenFile() {
    if (fd >= 0) ::close(fd);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
};

// Whether a segment has made this file, as far as that can be seen: what was written, or, when it died before it wrote
// anything, zeros in a file such as only it makes.
bool is_pool(int fd, const struct stat& status) {
  std::vector<uint8_t> head(Superblock::kBytes);  // zeros
  const ssize_t got = ::pread(fd, head.data(), head.size(), 0);
  if (got < 0) fail("reading the head of a file");
  if (Superblock::has_magic(head.data()) || Superblock::is_damaged(head.data())) return true;
  return Superblock::is_blank(head.data()) && (status.st_mode & 07777) == 0600 &&
         static_cast<uint64_t>(status.st_size) % kPage == 0;
}

}  // namespace

uint64_t KeptPool::journal_entries_for(uint64_t capacity_bytes) {
  return std::clamp(capacity_bytes / kBytesAnEntry, kJournalEntriesMin, kJournalEntriesMax);
}

KeptPool::KeptPool(const PoolLayout& layout, const KeptPoolOptions& options, PoolProgress* progress)
    : layout_(layout), pool_id_(options.new_pool_id) {
  if (options.pool.path.empty()) {
    fresh_reason_ = "it ends with the process";
    pool_ = std::make_unique<Pool>(layout_, options.pool, progress);
    return;
  }
  shape_.capacity_bytes = options.capacity_bytes;
  shape_.table_offset = Superblock::kBytes;
  shape_.data_offset = layout.data_offset;
  shape_.journal_entries = journal_entries_for(options.capacity_bytes);
  shape_.journal_offset = round_up(layout.map_bytes, kPage);
  shape_.slot_bytes = sizeof(SlotHeader);
  shape_.slot_version = SlotHeader::kVersion;
  layout_.map_bytes = shape_.map_bytes =
      shape_.journal_offset + round_up(JournalRing::bytes_of(shape_.journal_entries), kPage);
  if (options.empty) {
    discard_pool_file(options.pool.path);
    fresh_reason_ = "it was to be emptied";
  }
  open(options, progress);
  if (warm_ && !take_over()) {
    pool_.reset();
    fresh_reason_ = "its journal or the first of its slots are damaged";
    discard_pool_file(options.pool.path);
    open(options, progress);
  }
  if (!warm_) format(options);
}

void KeptPool::open(const KeptPoolOptions& options, PoolProgress* progress) {
  PoolOptions pool = options.pool;
  const BootId boot_id = current_boot_id();
  pool.examine = [&](const uint8_t* head, uint64_t size_bytes) {
    const FileIdentity file = file_identity(pool.path);
    const auto judgement = Superblock::judge(head, {options.segment_id, shape_, file, boot_id});
    if (judgement.verdict == Superblock::Verdict::kEmpty) throw OfNoUse{judgement.reason};
    if (judgement.verdict == Superblock::Verdict::kRefused)
      throw PoolRefusedError("the pool file " + pool.path + " " + judgement.reason);
    if (size_bytes < shape_.map_bytes)
      throw OfNoUse{"somebody has made it shorter: it has " + std::to_string(size_bytes) + " bytes of " +
                    std::to_string(shape_.map_bytes)};
  };
  try {
    pool_ = std::make_unique<Pool>(layout_, pool, progress);
  } catch (const OfNoUse& found) {
    fresh_reason_ = found.reason;
    discard_pool_file(pool.path);
    pool_ = std::make_unique<Pool>(layout_, pool, progress);
  }
  warm_ = pool_->adopted();
  if (!warm_ && fresh_reason_.empty()) fresh_reason_ = "there was none";
  superblock_.emplace(pool_->base());
  ring_.emplace(pool_->base() + shape_.journal_offset, shape_.journal_entries);
}

bool KeptPool::take_over() {
  pool_id_ = superblock_->pool_id();
  journal_ = ring_->recover();
  return journal_.intact &&
         SlotTable::is_chunk(pool_->base(), layout_.data_offset, SlotTable::kFirstChunkOffset);
}

void KeptPool::format(const KeptPoolOptions& options) {
  pool_id_ = options.new_pool_id;
  superblock_->begin_format(pool_id_, options.segment_id, shape_, file_identity(options.pool.path));
  ring_->format();
  journal_ = ring_->recover();
}

void KeptPool::formatted() noexcept {
  if (superblock_ && !warm_) superblock_->end_format();
}

void KeptPool::set_cluster_id(const ClusterId& cluster_id) noexcept {
  if (superblock_ && superblock_->cluster_id() != cluster_id) superblock_->set_cluster_id(cluster_id);
}

void discard_pool_file(const std::string& path) {
  const auto refuse = [&path](const char* why) {
    throw PoolRefusedError("the pool file " + path + " " + why);
  };
  const OpenFile file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.fd < 0) {
    if (errno == ENOENT) return;
    fail("opening " + path);
  }
  struct stat status{};
  if (::fstat(file.fd, &status) != 0) fail("fstat of " + path);
  if (!S_ISREG(status.st_mode)) refuse("is not a regular file: choose another pool_path");
  // A mistyped path must not cost anybody a file that was never a pool.
  struct statfs system{};
  if (::fstatfs(file.fd, &system) != 0) fail("fstatfs of " + path);
  const auto type = static_cast<uint64_t>(system.f_type);
  if (type != kTmpfs && type != kHugetlbfs)
    refuse("is neither on tmpfs nor on hugetlbfs, where pools are: choose another pool_path");
  if (status.st_uid != ::geteuid())
    refuse("belongs to another user: run as that user, or choose another pool_path");
  if (status.st_nlink > 1) refuse("has a second name (a hard link): remove one of them");
  if (::flock(file.fd, LOCK_EX | LOCK_NB) != 0)
    refuse("is in use by another process: stop it, or give this segment its own with pool_path");
  // Between opening and locking another process may have put its own pool there.
  struct stat named{};
  if (::lstat(path.c_str(), &named) != 0 || named.st_ino != status.st_ino || named.st_dev != status.st_dev)
    refuse("was replaced while it was being opened: start again");
  if (!is_pool(file.fd, status)) refuse("is not a pool of kvstore: remove it, or choose another pool_path");
  if (::unlink(path.c_str()) != 0) fail("removing " + path);
  // Not on hugetlbfs: who has it mapped could not have a page of zeros where none is left.
  if (type == kTmpfs) ::fallocate(file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, status.st_size);
}

uint64_t pool_file_capacity_bytes(const std::string& path) noexcept {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  alignas(8) uint8_t head[Superblock::kBytes];
  const ssize_t got = file.fd < 0 ? -1 : ::pread(file.fd, head, sizeof(head), 0);
  return got == static_cast<ssize_t>(sizeof(head)) ? Superblock::capacity_bytes(head) : 0;
}

}  // namespace kvstore
