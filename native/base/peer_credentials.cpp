#include "base/peer_credentials.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

namespace kvstore {
namespace {

std::optional<uid_t> peer_uid(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer.uid;
}

bool is_own_or_root(uid_t uid) { return uid == ::geteuid() || uid == 0; }

}  // namespace

bool is_own_or_root_peer(int socket) {
  const auto uid = peer_uid(socket);
  return uid && is_own_or_root(*uid);
}

bool is_rightful_listener(int socket, const std::string& path) {
  const auto uid = peer_uid(socket);
  if (!uid) return false;
  if (is_own_or_root(*uid)) return true;
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat status{};
  return ::stat(directory.c_str(), &status) == 0 && status.st_uid == *uid &&
         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace kvstore
