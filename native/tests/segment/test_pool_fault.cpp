// Memory of a pool that is taken away under a process: its last line says what has happened.
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "check.hpp"
#include "segment/pool.hpp"
#include "segment/pool_place.hpp"

using namespace kvstore;

namespace {

// What a child says on stderr that makes a pool at `path`, cuts the file off behind `left` bytes, and touches one behind them.
std::string said_by_one_that_lost(const std::string& path, uint64_t left, uint64_t touched) {
  int ends[2];
  CHECK_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    PoolOptions options;
    options.path = path;
    options.huge_pages = HugePages::kOff;
    const Pool pool(pool_layout(4 << 20, 1024, 128), options);
    if (::truncate(path.c_str(), static_cast<off_t>(left)) == 0)
      *static_cast<volatile uint8_t*>(pool.base() + touched) = 1;
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  char part[4096];
  for (ssize_t got; (got = ::read(ends[0], part, sizeof(part))) > 0;)
    said.append(part, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
  return said;
}

}  // namespace

TEST(a_process_whose_pool_is_cut_off_says_so_in_one_line_before_it_dies) {
  const PoolPlace place;
  const std::string path = place.file("pool");
  const std::string said = said_by_one_that_lost(path, 1 << 20, 3 << 20);
  const std::string expected =
      "kvstore: byte 3145728 of the pool " + path + " is gone (SIGBUS): its file was made shorter";
  CHECK_EQ(said.substr(0, expected.size()), expected);
  const size_t end = said.find('\n');
  CHECK(end != std::string::npos && said.find("kvstore: byte", end) == std::string::npos);
  CHECK(said.substr(0, end).find("Start it again") != std::string::npos);
}

TEST_MAIN()
