// A log of commits in files of a fixed size: what makes a commit durable, before a database behind it has taken it over.
//
// A file is written with zeros when it is made, and is used again once nothing in it is needed: a sync has no metadata of the file
// system to write. Records lie at multiples of 32 bytes:
//
//   u32 magic "KVC1" | u32 payload_bytes | u64 sequence | u32 file_id | u32 in_group | u32 crc32c(payload) | u32 crc32c(before)
//   payload
//
// Sequences count up by one without a hole. File ids grow with each use of a file, so that what an earlier use has left behind is told
// from what is new. in_group counts the records that one write has put before this one. A damaged record costs itself: reading goes
// on at the next one that is whole; only the last write of all may never have been finished, and counts up to its first hole. A file
// that failed to be written or synced is not trusted with anything new: the same records go, under the same sequences, into the next
// file, and what the newer file says counts. No directory is used by two processes at a time. Nothing is durable in a directory or a
// file that was removed meanwhile: appending fails until the directory is back, and leaves the file for the next.
//
// Threads: one at a time. Errors: std::system_error with the errno; LogFull.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvstore {

// Every file holds records that are still needed.
class LogFull : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Another process has the directory. The text names it where that is known.
class LogInUse : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class CommitLog {
 public:
  struct Options {
    std::string directory;  // made if it is not there
    uint64_t file_bytes = 4u << 20;
    uint32_t files_max = 4;
  };
  struct Record {
    uint64_t sequence;
    std::string payload;
  };
  struct Contents {
    std::vector<Record> records;  // in order
    uint64_t lost = 0;            // sequences before the last that no whole record has
    std::string trouble;          // why a file could not be read, if one could not
  };

  // Takes the directory for this process. Throws LogInUse.
  explicit CommitLog(Options options);
  ~CommitLog();
  CommitLog(const CommitLog&) = delete;
  CommitLog& operator=(const CommitLog&) = delete;

  // What was appended after `released`. A record at the very end that is not whole was never durable, and is not counted as lost.
  // Appending goes on behind it. Throws, and has touched nothing, when a file that is there can't be opened.
  Contents read(uint64_t released);

  // Durable on return: one write and one sync, two where a file is full. The sequence of the first; `released` is up to where records
  // are needed no more. On an error none counts, and the same may be appended again.
  uint64_t append(const std::vector<std::string>& payloads, uint64_t released);
  // Makes a file ready of those that will be wanted next; whether there was one to make. Spares append() the time.
  bool prepare(uint64_t released);

  // That one file takes.
  uint64_t payload_bytes_max() const { return options_.file_bytes - kHeadBytes; }

  static constexpr uint64_t kHeadBytes = 32;

 private:
  struct File {
    std::string path;
    int fd = -1;
    uint32_t id = 0;             // of its present use
    uint64_t last_sequence = 0;  // needed until that one is released
    uint64_t used_bytes = 0;
    bool ready = false;  // has its size, and has not failed
  };

  struct Found {
    Record record;
    uint32_t in_group;
    size_t file;
    uint64_t end;  // in the file
  };

  void lock();
  void read_file(size_t number, std::vector<Found>& into, std::string& trouble);
  static void cut_unfinished(std::vector<Found>& found);
  File& file_with_room(uint64_t bytes, uint64_t released);
  void resume(File& file);
  void make(File& file);
  static int write_zeros(int fd, uint64_t from, uint64_t to);
  void write(File& file, const std::string& bytes);
  void check_directory() const;
  static bool is_there(const File& file);
  void sync_directory() const;
  void close(File& file) noexcept;
  std::string file_path(size_t number) const;
  [[noreturn]] static void fail(int error, const std::string& what);

  const Options options_;
  int lock_fd_ = -1;
  std::vector<File> files_;
  // Of files_, which keeps its size once it is read.
  File* current_ = nullptr;
  File* resumable_ = nullptr;  // what was written last before this process
  uint64_t next_sequence_ = 1;
  uint32_t last_file_id_ = 0;
};

}  // namespace kvstore
