// What a forked child does with the objects that it inherited is no harm to its parent.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "check.hpp"
#include "client/registered_memory.hpp"
#include "client/shared_buffer.hpp"
#include "segment/data_port/server.hpp"
#include "segment/data_port_client.hpp"

using namespace kvstore;
using namespace kvstore::testing;

// What `work` returned in a child; -1 when the child ended otherwise, or hung.
template <typename Work>
static int in_a_child(Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(work() ? 0 : 1);
  }
  int outcome = -1;
  ::waitpid(child, &outcome, 0);
  return WIFEXITED(outcome) ? WEXITSTATUS(outcome) : -1;
}

TEST(a_shared_buffer_keeps_its_bytes_when_a_child_destroys_its_copy) {
  constexpr size_t kBytes = 1 << 20;
  auto buffer = std::make_unique<SharedBuffer>(kBytes);
  const std::vector<uint8_t> expected = content("the parent's", kBytes);
  std::memcpy(buffer->data(), expected.data(), kBytes);
  const auto address = reinterpret_cast<uint64_t>(buffer->data());
  CHECK(RegisteredMemory::shared_buffers().find(address) != nullptr);
  CHECK_EQ(in_a_child([&] {
             uint8_t resident;
             const bool mapped = buffer->is_mapped_here() || ::mincore(buffer->data(), 4096, &resident) == 0;
             const bool known = RegisteredMemory::shared_buffers().find(address) != nullptr;
             buffer.reset();
             SharedBuffer own(kBytes);  // where the parent's is, perhaps
             return !mapped && !known &&
                    RegisteredMemory::shared_buffers().find(reinterpret_cast<uint64_t>(own.data())) !=
                        nullptr;
           }),
           0);
  CHECK(buffer->is_mapped_here());
  CHECK(RegisteredMemory::shared_buffers().find(address) != nullptr);
  CHECK(std::memcmp(buffer->data(), expected.data(), kBytes) == 0);
  struct stat file{};
  CHECK(::fstat(buffer->fd(), &file) == 0 && file.st_blocks * 512 >= static_cast<off_t>(kBytes));
}

#ifndef __SANITIZE_THREAD__  // which has no model of a fork with threads
TEST(a_server_goes_on_serving_when_a_child_stops_and_drops_its_copy) {
  char name[] = "/tmp/kvstore-test-XXXXXX";
  const std::string directory = ::mkdtemp(name);
  {
    auto store = make_process_owned<SegmentStore>(small_store(4 << 20));
    DataServerOptions options;
    options.tcp_host = "127.0.0.1";
    options.unix_path = directory + "/data.sock";
    auto server = make_process_owned<DataServer>(store, options);
    DataClient tcp(server->tcp_port()), same_host(options.unix_path);
    CHECK(tcp.call(put_frame({"a"}, 5000)).status == wire::Status::kOk);
    CHECK_EQ(in_a_child([&] {
               server->stop();
               store->close();
               server.reset();
               store.reset();
               return true;
             }),
             0);
    CHECK_EQ(get_one(*store, "a"), wire::Status::kOk);
    CHECK(tcp.call(put_frame({"b"}, 5000)).status == wire::Status::kOk);
    CHECK(same_host.call(put_frame({"c"}, 5000)).status == wire::Status::kOk);
    DataClient later(options.unix_path);
    CHECK(later.call(put_frame({"d"}, 5000)).status == wire::Status::kOk);
  }
  CHECK_EQ(::rmdir(directory.c_str()), 0);
}
#endif

TEST_MAIN()
