// Who is at the other end of a unix socket, and whether that may be given a token, a pool or a client's memory.
#pragma once

#include <string>

namespace kvstore {

// The peer runs as this process's user, or as root.
bool is_own_or_root_peer(int socket);

// For a client that has connected to `path`: whoever listens there could have had itself put there. It is this user or root, or
// the owner of a directory that nobody else may write to: a root client's segment runs as another user, say.
bool is_rightful_listener(int socket, const std::string& path);

}  // namespace kvstore
