// Names keep all of their addresses, and the last good ones while the name server is late, dead or talks nonsense.
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <thread>

#include "base/host_resolver.hpp"
#include "check.hpp"

using namespace kvstore;

namespace {

constexpr int64_t kLateMsMax = 200;

SocketAddress address_of(const std::string& text) {
  SocketAddress a;
  if (text.find(':') == std::string::npos) {
    a.storage.ss_family = AF_INET;
    a.size = sizeof(sockaddr_in);
    ::inet_pton(AF_INET, text.c_str(), &reinterpret_cast<sockaddr_in&>(a.storage).sin_addr);
  } else {
    a.storage.ss_family = AF_INET6;
    a.size = sizeof(sockaddr_in6);
    ::inet_pton(AF_INET6, text.c_str(), &reinterpret_cast<sockaddr_in6&>(a.storage).sin6_addr);
  }
  return a;
}

std::vector<SocketAddress> addresses_of(const std::vector<std::string>& texts) {
  std::vector<SocketAddress> all;
  for (const std::string& text : texts) all.push_back(address_of(text));
  return all;
}

std::string show_all(const std::vector<SocketAddress>& addresses) {
  std::string out;
  for (const SocketAddress& a : addresses) {
    char text[INET6_ADDRSTRLEN] = {};
    uint16_t port;
    if (a.family() == AF_INET) {
      const auto& in = reinterpret_cast<const sockaddr_in&>(a.storage);
      ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
      port = ntohs(in.sin_port);
    } else {
      const auto& in = reinterpret_cast<const sockaddr_in6&>(a.storage);
      ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof(text));
      port = ntohs(in.sin6_port);
    }
    out += (out.empty() ? "" : " ") + std::string(text) + "/" + std::to_string(port);
  }
  return out;
}

// A name server that answers what it is told, when it is told to.
class NameServer {
 public:
  void answer(const std::vector<std::string>& texts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    answer_ = addresses_of(texts);
    hangs_ = fails_ = false;
    changed_.notify_all();
  }
  void hang() {
    const std::lock_guard<std::mutex> lock(mutex_);
    hangs_ = true;
  }
  void run_out_of_memory() {
    const std::lock_guard<std::mutex> lock(mutex_);
    fails_ = true;
  }
  std::vector<SocketAddress> ask(const std::string&) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++asked;
    changed_.wait(lock, [this] { return !hangs_; });
    if (fails_) throw std::bad_alloc();
    return answer_;
  }
  HostResolver::Query query() {
    return [this](const std::string& host) { return ask(host); };
  }

  std::atomic<int> asked{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<SocketAddress> answer_;
  bool hangs_ = false;
  bool fails_ = false;
};

// Outlives the lookups, some of which never end.
NameServer& new_server() {
  static std::list<NameServer> all;
  return all.emplace_back();
}

// Asked again each time; late answers are waited for briefly.
constexpr HostResolver::Times kAlwaysStale{0, 0, 20};

Deadline soon() { return Deadline::after_ms(2000); }

// What the system's resolver is, in this program: names that begin with "hang" never get an answer.
std::atomic<int> plain_queries{0};

}  // namespace

extern "C" int getaddrinfo(const char* host, const char*, const addrinfo* hints, addrinfo** out) {
  const std::string name = host;
  const bool numeric = name.find_first_not_of("0123456789.:") == std::string::npos;
  if ((hints->ai_flags & AI_NUMERICHOST) != 0 && !numeric) return EAI_NONAME;
  if (name.rfind("hang", 0) == 0) std::this_thread::sleep_for(std::chrono::hours(1));
  std::vector<std::string> texts;
  if (numeric) texts = {name};
  if (name == "both") texts = {"192.0.2.1", "2001:db8::1"};
  if (name == "local") texts = {"127.0.0.1"};
  if (name == "local" && (hints->ai_flags & AI_ADDRCONFIG) == 0) texts = {"::1", "127.0.0.1"};
  if ((hints->ai_flags & AI_ADDRCONFIG) == 0) ++plain_queries;
  if (texts.empty()) return name == "later" ? EAI_AGAIN : EAI_NONAME;
  addrinfo* next = nullptr;
  for (size_t i = texts.size(); i-- > 0;) {
    auto* info = new addrinfo{};
    auto* address = new SocketAddress(address_of(texts[i]));
    info->ai_family = address->family();
    info->ai_addr = reinterpret_cast<sockaddr*>(&address->storage);
    info->ai_addrlen = address->size;
    info->ai_next = next;
    next = info;
  }
  *out = next;
  return 0;
}

extern "C" void freeaddrinfo(addrinfo* info) {
  while (info != nullptr) {
    addrinfo* next = info->ai_next;
    delete reinterpret_cast<SocketAddress*>(info->ai_addr);  // its storage comes first
    delete info;
    info = next;
  }
}

TEST(all_addresses_of_a_name_are_kept_families_by_turns) {
  NameServer& server = new_server();
  server.answer({"10.0.0.1", "10.0.0.2", "10.0.0.1", "fd00::1", "10.0.0.3"});
  HostResolver resolver(server.query());
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.1/7 fd00::1/7 10.0.0.2/7 10.0.0.3/7");
  CHECK_EQ(show_all(resolver.resolve("name", 8, soon())), "10.0.0.1/8 fd00::1/8 10.0.0.2/8 10.0.0.3/8");
  CHECK_EQ(server.asked.load(), 1);
}

TEST(numeric_hosts_are_never_looked_up) {
  NameServer& server = new_server();
  HostResolver resolver(server.query());
  CHECK_EQ(show_all(resolver.resolve("127.0.0.1", 7, soon())), "127.0.0.1/7");
  CHECK_EQ(show_all(resolver.resolve("::1", 7, soon())), "::1/7");
  CHECK_EQ(server.asked.load(), 0);
}

TEST(the_address_that_worked_goes_first_and_stays_there) {
  NameServer& server = new_server();
  server.answer({"fd00::1", "10.0.0.1"});
  HostResolver resolver(server.query(), kAlwaysStale);
  resolver.resolve("name", 7, soon());
  resolver.connected("name", address_of("10.0.0.1"));
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.1/7 fd00::1/7");
  server.answer({"10.0.0.9"});  // it has moved
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.9/7");
}

TEST(what_was_found_last_is_used_when_the_name_server_is_dead) {
  NameServer& server = new_server();
  server.answer({"10.0.0.1"});
  HostResolver resolver(server.query(), kAlwaysStale);
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.1/7");
  server.answer({});
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.1/7");
  server.run_out_of_memory();
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.1/7");
  server.hang();
  for (int i = 0; i < 3; ++i) {
    const auto start = Deadline::Clock::now();
    CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.1/7");
    CHECK(Deadline::Clock::now() - start < std::chrono::milliseconds(kLateMsMax));
  }
  server.answer({"10.0.0.2"});
  while (show_all(resolver.resolve("name", 7, soon())) != "10.0.0.2/7") std::this_thread::yield();
}

TEST(a_first_lookup_that_is_late_costs_the_deadline_and_is_used_afterwards) {
  NameServer& server = new_server();
  server.hang();
  HostResolver resolver(server.query());
  const auto start = Deadline::Clock::now();
  CHECK(resolver.resolve("name", 7, Deadline::after_ms(50)).empty());
  CHECK(resolver.resolve("name", 7, soon().with_stall_ms(50)).empty());
  CHECK(Deadline::Clock::now() - start < std::chrono::milliseconds(100 + kLateMsMax));
  server.answer({"10.0.0.1"});
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.1/7");
  CHECK_EQ(server.asked.load(), 1);
}

TEST(a_failure_is_not_repeated_for_a_while_and_then_forgotten) {
  NameServer& server = new_server();
  server.answer({});
  HostResolver resolver(server.query(), {5000, 100, 20});
  for (int i = 0; i < 10; ++i) CHECK(resolver.resolve("name", 7, soon()).empty());
  CHECK(server.asked.load() <= 2);
  server.answer({"10.0.0.1"});
  const Deadline patience = Deadline::after_ms(5000);
  while (resolver.resolve("name", 7, soon()).empty() && !patience.expired()) std::this_thread::yield();
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.1/7");
}

TEST(a_name_whose_addresses_fail_is_looked_up_again) {
  NameServer& server = new_server();
  server.answer({"10.0.0.1"});
  HostResolver resolver(server.query(), {3600 * 1000, 0, 2000});
  resolver.resolve("name", 7, soon());
  server.answer({"10.0.0.2"});
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.1/7");
  resolver.unreachable("name");
  CHECK_EQ(show_all(resolver.resolve("name", 7, soon())), "10.0.0.2/7");
}

TEST(more_names_than_are_kept_are_all_found) {
  NameServer& server = new_server();
  server.answer({"10.0.0.1"});
  HostResolver resolver(server.query());
  for (size_t i = 0; i < HostResolver::kNamesMax + 50; ++i)
    CHECK_EQ(resolver.resolve("name" + std::to_string(i), 7, soon()).size(), size_t{1});
}

TEST(lookups_that_hang_take_a_bounded_number_of_threads) {
  NameServer& server = new_server();
  server.hang();
  HostResolver resolver(server.query());
  for (size_t i = 0; i < HostResolver::kLookupsMax + 20; ++i)
    CHECK(resolver.resolve("name" + std::to_string(i), 7, Deadline::after_ms(1)).empty());
  const Deadline patience = Deadline::after_ms(5000);
  while (server.asked.load() < static_cast<int>(HostResolver::kLookupsMax) && !patience.expired())
    std::this_thread::yield();
  CHECK_EQ(server.asked.load(), static_cast<int>(HostResolver::kLookupsMax));
  server.answer({"10.0.0.1"});
  CHECK_EQ(resolver.resolve("name" + std::to_string(HostResolver::kLookupsMax), 7, soon()).size(), size_t{1});
}

TEST(the_systems_resolver_is_asked_for_every_family_of_local_names) {
  HostResolver& resolver = HostResolver::process();
  CHECK_EQ(show_all(resolver.resolve("local", 7, soon())), "::1/7 127.0.0.1/7");
  const int before = plain_queries.load();
  CHECK_EQ(show_all(resolver.resolve("both", 7, soon())), "192.0.2.1/7 2001:db8::1/7");
  CHECK(resolver.resolve("later", 7, soon()).empty());
  CHECK_EQ(plain_queries.load(), before);
  CHECK(resolver.resolve("nowhere", 7, soon()).empty());
}

// The sanitizers start threads under locks of their own, which a fork in the middle leaves held in the child for good.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(a_forked_child_looks_names_up_although_the_parent_was_in_the_middle_of_it) {
  CHECK(HostResolver::process().resolve("hang", 7, Deadline::after_ms(50)).empty());
  std::atomic<bool> done{false};
  std::thread busy([&] {  // holds the resolver's lock at many moments
    while (!done.load()) (void)HostResolver::process().resolve("both", 7, Deadline::after_ms(1));
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);
      ::_exit(HostResolver::process().resolve("both", 7, soon()).size() == 2 ? 0 : 1);
    }
    int status = 0;
    CHECK_EQ(::waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  done.store(true);
  busy.join();
}
#endif

int main() {
  const int code = kvstore::testing::run_all();
  std::fflush(nullptr);
  ::_exit(code);  // a lookup still hangs
}
