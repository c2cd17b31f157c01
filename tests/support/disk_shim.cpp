// A disk that is slow, hangs, fails or is full, for the files under one directory: preloaded into a server by support.disk_shim.
//
// DISK_SHIM_DIRECTORY: which files. DISK_SHIM_CONTROL: a file that says how the disk does, read at each call: "sync_ms write_ms error
// full". DISK_SHIM_CALLS: a file that gets a line for each sync.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

namespace {

struct State {
  int sync_ms = 0;
  int write_ms = 0;
  int error = 0;  // of syncs and writes
  int full = 0;   // what makes files, or makes them larger, has no space
};

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

State state() {
  State now;
  const char* path = getenv("DISK_SHIM_CONTROL");
  static const auto real_open = next<int (*)(const char*, int, ...)>("open");
  const int fd = path == nullptr ? -1 : real_open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return now;
  char text[128] = {};
  if (read(fd, text, sizeof text - 1) > 0)
    sscanf(text, "%d %d %d %d", &now.sync_ms, &now.write_ms, &now.error, &now.full);
  close(fd);
  return now;
}

bool is_ours(const char* path) {
  const char* directory = getenv("DISK_SHIM_DIRECTORY");
  return directory != nullptr && strncmp(path, directory, strlen(directory)) == 0;
}

bool is_ours(int fd, char* path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, size - 1);
  if (length < 0) return false;
  path[length] = '\0';
  return is_ours(path);
}

// In steps: a control file that is changed meanwhile counts.
void wait_for_disk(int State::*ms) {
  for (int waited = 0; waited < state().*ms; waited += 5) {
    const timespec step{0, 5000000};
    nanosleep(&step, nullptr);
  }
}

int synced(int fd, const char* name, int (*real)(int)) {
  char path[4096];
  if (!is_ours(fd, path, sizeof path)) return real(fd);
  wait_for_disk(&State::sync_ms);
  if (const int error = state().error) {
    errno = error;
    return -1;
  }
  const int result = real(fd);
  if (const char* calls = getenv("DISK_SHIM_CALLS")) {
    static const auto real_open = next<int (*)(const char*, int, ...)>("open");
    static const auto real_write = next<ssize_t (*)(int, const void*, size_t)>("write");
    const int log = real_open(calls, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    char line[4200];
    const int length = snprintf(line, sizeof line, "%s %s\n", name, path);
    if (log >= 0) {
      (void)!real_write(log, line, static_cast<size_t>(length));
      close(log);
    }
  }
  return result;
}

// 0, or why a write of so many bytes at that place does not happen.
int refusal(int fd, off_t end) {
  char path[4096];
  if (!is_ours(fd, path, sizeof path)) return 0;
  wait_for_disk(&State::write_ms);
  const State now = state();
  if (now.error != 0) return now.error;
  struct stat file;
  if (now.full != 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && end > file.st_size) return ENOSPC;
  return 0;
}

int refused_open(const char* path, int flags) {
  if ((flags & O_CREAT) == 0 || !is_ours(path) || state().full == 0) return 0;
  return access(path, F_OK) == 0 ? 0 : ENOSPC;
}

template <typename Real>
int opened(Real real, const char* path, int flags, mode_t mode) {
  if (const int error = refused_open(path, flags)) {
    errno = error;
    return -1;
  }
  return real(path, flags, mode);
}

}  // namespace

#define MODE_ARGUMENT(flags)                \
  mode_t mode = 0;                          \
  if (((flags) & (O_CREAT | O_TMPFILE)) != 0) { \
    va_list arguments;                      \
    va_start(arguments, flags);             \
    mode = va_arg(arguments, mode_t);       \
    va_end(arguments);                      \
  }

extern "C" {

int fdatasync(int fd) { return synced(fd, "fdatasync", next<int (*)(int)>("fdatasync")); }
int fsync(int fd) { return synced(fd, "fsync", next<int (*)(int)>("fsync")); }

ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  if (const int error = refusal(fd, at + static_cast<off_t>(size))) return errno = error, -1;
  return next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  if (const int error = refusal(fd, at + static_cast<off_t>(size))) return errno = error, -1;
  return next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64")(fd, data, size, at);
}
ssize_t write(int fd, const void* data, size_t size) {
  const off_t at = lseek(fd, 0, SEEK_CUR);
  if (const int error = at < 0 ? 0 : refusal(fd, at + static_cast<off_t>(size))) return errno = error, -1;
  return next<ssize_t (*)(int, const void*, size_t)>("write")(fd, data, size);
}

int open(const char* path, int flags, ...) {
  MODE_ARGUMENT(flags)
  return opened(next<int (*)(const char*, int, ...)>("open"), path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE_ARGUMENT(flags)
  return opened(next<int (*)(const char*, int, ...)>("open64"), path, flags, mode);
}
FILE* fopen(const char* path, const char* how) {
  if (const int error = refused_open(path, how[0] == 'r' ? 0 : O_CREAT)) return errno = error, nullptr;
  return next<FILE* (*)(const char*, const char*)>("fopen")(path, how);
}
FILE* fopen64(const char* path, const char* how) {
  if (const int error = refused_open(path, how[0] == 'r' ? 0 : O_CREAT)) return errno = error, nullptr;
  return next<FILE* (*)(const char*, const char*)>("fopen64")(path, how);
}
int mkdir(const char* path, mode_t mode) {
  if (const int error = refused_open(path, O_CREAT)) return errno = error, -1;
  return next<int (*)(const char*, mode_t)>("mkdir")(path, mode);
}

}  // extern "C"
