// Files of a commit log, whatever their bytes: read without a word more than they hold, and appending goes on behind what was read.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "base/digest.hpp"
#include "fuzz.hpp"
#include "master/commit_log.hpp"

namespace kvstore::fuzz {
namespace {

constexpr uint32_t kFiles = 3;
constexpr uint64_t kFileBytes = 2048;

// In memory where that can be had: what is fuzzed is the reading, and a disk only makes it slow.
class Folder {
 public:
  Folder()
      : path_(std::string(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/kvstore-fuzz-XXXXXX") {
    HOLDS(::mkdtemp(path_.data()) != nullptr);
  }
  ~Folder() {
    if (DIR* const listing = ::opendir(path_.c_str())) {
      while (const dirent* const entry = ::readdir(listing)) ::unlink((path_ + "/" + entry->d_name).c_str());
      ::closedir(listing);
    }
    ::rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }
  std::string file(size_t number) const { return path_ + "/" + std::to_string(number) + ".commits"; }

 private:
  std::string path_;
};

CommitLog::Options options(const Folder& folder) { return {folder.path(), kFileBytes, kFiles}; }

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Of the records that are there, most have been changed: their checks are made right again, so that what they say is looked at.
void repair(Bytes& file) {
  for (size_t at = 0; at + CommitLog::kHeadBytes <= file.size(); at += 32) {
    uint32_t head[8];
    std::memcpy(head, file.data() + at, sizeof(head));
    const uint32_t bytes = head[1];
    if (head[0] != 0x3143564B || bytes > file.size() - at - sizeof(head)) continue;
    head[6] = crc32c(0, file.data() + at + sizeof(head), bytes);
    head[7] = crc32c(0, head, 28);
    std::memcpy(file.data() + at, head, sizeof(head));
  }
}

CommitLog::Contents read_checked(CommitLog& log, uint64_t released) {
  CommitLog::Contents contents = log.read(released);
  uint64_t last = released, bytes = 0;
  for (const CommitLog::Record& record : contents.records) {
    HOLDS(record.sequence > last);
    last = record.sequence;
    bytes += record.payload.size();
  }
  HOLDS(bytes <= kFiles * kFileBytes);
  return contents;
}

}  // namespace

std::vector<Seed> seeds() {
  std::vector<Seed> seeds;
  const Folder folder;
  const auto keep = [&](const std::string& name, uint8_t flags) {
    Bytes bytes{flags, 0};
    for (size_t i = 0; i < kFiles; ++i) {
      Bytes file = read_file(folder.file(i));
      file.resize(kFileBytes);
      bytes.insert(bytes.end(), file.begin(), file.end());
    }
    seeds.push_back({name, bytes});
  };
  CommitLog log(options(folder));
  log.read(0);
  log.append({"one", "two", std::string(200, 'x')}, 0);
  keep("one_file", 0);
  log.append({std::string(1500, 'y')}, 0);
  log.append({std::string(900, 'z'), "end"}, 0);
  keep("three_files", 0);
  log.append({std::string(1000, 'a')}, 4);
  log.append({"b", "c"}, 5);
  keep("a_file_used_again", 1);
  return seeds;
}

int fuzz_one(const uint8_t* data, size_t size) {
  Input input(data, size);
  const bool repaired = input.take<uint8_t>() % 2 == 1;
  const uint64_t released = input.take<uint8_t>();
  const Folder folder;
  for (size_t i = 0; i < kFiles && (i == 0 || input.left() > 0); ++i) {
    Bytes file = input.bytes(kFileBytes);
    if (repaired) repair(file);
    write_file(folder.file(i), file);
  }
  std::vector<CommitLog::Record> before;
  uint64_t first = 0;
  {
    CommitLog log(options(folder));
    before = read_checked(log, released).records;
    if (!before.empty() && before.back().sequence > UINT64_MAX - 100) return 0;  // no master counts so far
    try {
      first = log.append({"after", "the input"}, released);
      HOLDS(first == (before.empty() ? released : before.back().sequence) + 1);
    } catch (const LogFull&) {
      return 0;
    }
  }
  CommitLog log(options(folder));
  const std::vector<CommitLog::Record> after = read_checked(log, released).records;
  HOLDS(after.size() == before.size() + 2 && after.back().payload == "the input");
  HOLDS(after[after.size() - 2].sequence == first);
  return 0;
}

}  // namespace kvstore::fuzz
