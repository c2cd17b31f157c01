// A client gives its token to the rightful owner of a unix socket only.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "check.hpp"
#include "client/connection/client_socket.hpp"

using namespace kvstore;

namespace {

constexpr uid_t kStranger = 65534;

// A process of the user's that listens at a path until it is killed.
class Listener {
 public:
  Listener(const std::string& path, uid_t uid) {
    int ready[2];
    CHECK_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      path.copy(address.sun_path, sizeof(address.sun_path) - 1);
      const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
      const bool up = ::setuid(uid) == 0 &&
                      ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                      ::chmod(path.c_str(), 0666) == 0 && ::listen(fd, 16) == 0;
      [[maybe_unused]] const ssize_t n = ::write(ready[1], up ? "+" : "-", 1);
      for (;;) ::pause();
    }
    char answer = 0;
    CHECK_EQ(::read(ready[0], &answer, 1), ssize_t{1});
    CHECK_EQ(answer, '+');
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Listener() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

NetStatus connect(const std::string& path) {
  ClientSocket socket;
  return ClientSocket::connect_unix(path, Deadline::after_ms(5000), &socket);
}

struct Directory {
  explicit Directory(mode_t mode, uid_t owner) {
    char name[] = "/tmp/kvstore-test-XXXXXX";
    path = ::mkdtemp(name);
    CHECK_EQ(::chmod(path.c_str(), mode), 0);
    if (::geteuid() == 0) CHECK_EQ(::chown(path.c_str(), owner, owner), 0);
  }
  ~Directory() {
    ::unlink(socket().c_str());
    ::rmdir(path.c_str());
  }
  std::string socket() const { return path + "/data.sock"; }
  std::string path;
};

}  // namespace

TEST(the_own_users_socket_is_trusted_wherever_it_lies) {
  const Directory directory(0777, ::geteuid());
  const Listener listener(directory.socket(), ::geteuid());
  CHECK_EQ(connect(directory.socket()), NetStatus::kOk);
}

TEST(another_users_socket_is_trusted_in_a_directory_of_its_own_and_nowhere_else) {
  if (::geteuid() != 0) {
    std::fprintf(stderr, "not root: no other user to be\n");
    return;
  }
  {
    const Directory shared(0777, 0);
    const Listener planted(shared.socket(), kStranger);
    CHECK_EQ(connect(shared.socket()), NetStatus::kRefused);
  }
  {
    const Directory open_to_a_group(0775, kStranger);
    const Listener planted(open_to_a_group.socket(), kStranger);
    CHECK_EQ(connect(open_to_a_group.socket()), NetStatus::kRefused);
  }
  const Directory own(0755, kStranger);
  const Listener rightful(own.socket(), kStranger);
  CHECK_EQ(connect(own.socket()), NetStatus::kOk);
}

TEST_MAIN()
