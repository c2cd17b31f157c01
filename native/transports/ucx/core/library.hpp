// UCX's libucp.so.0, opened at run time. At most one a process, never closed. Thread-safe.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "transports/ucx/core/abi.hpp"

namespace kvstore {

// RDMA can't be had, or failed; what() says why and what would help.
class UcxError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr const char* kUcxLibraryDefault = "libucp.so.0";

// Settings that UCX takes from the environment only, and only when it is loaded and opened for the first time: its hooks into the
// process (signal handlers, memory calls) are off. They are there while this object lives, so that programs started later don't
// inherit them; variables that were set already are the user's and stay as they are.
class UcxEnvironment {
 public:
  UcxEnvironment();
  ~UcxEnvironment();
  UcxEnvironment(const UcxEnvironment&) = delete;
  UcxEnvironment& operator=(const UcxEnvironment&) = delete;

 private:
  std::vector<const char*> set_;
};

class UcxLibrary {
 public:
  // Throws UcxError: not found, a version that does not fit, or the process has another libucp.so.0 already (its SONAME makes the
  // loader take that one instead). An empty path is the system's.
  static const UcxLibrary& load(const std::string& path, const UcxEnvironment& environment);

  const ucx::Api& api() const { return api_; }
  // For messages: path and version.
  const std::string& description() const { return description_; }
  std::string text(ucx::Status status) const { return api_.status_string(status); }

 private:
  UcxLibrary(void* handle, const std::string& requested);
  ucx::Api api_{};
  std::string requested_;
  std::string description_;
};

}  // namespace kvstore
