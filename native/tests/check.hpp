// The whole test framework: CHECK macros that print where and what, and TEST cases that register themselves.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace kvstore::testing {

struct Case {
  const char* name;
  std::function<void()> body;
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline std::atomic<int>& failures() {  // of checks on any thread
  static std::atomic<int> count{0};
  return count;
}
struct Register {
  Register(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};
template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>)
    out << static_cast<long long>(value);
  else
    out << value;
  return out.str();
}
inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, what.c_str());
  ++failures();
}
inline int run_all() {
  for (const Case& c : cases()) {
    const int before = failures();
    try {
      c.body();
    } catch (const std::exception& e) {
      fail(c.name, 0, std::string("unexpected exception: ") + e.what());
    }
    std::fprintf(stderr, "%s %s\n", failures() == before ? "ok  " : "FAIL", c.name);
  }
  return failures() == 0 && !cases().empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace kvstore::testing

#define TEST(name)                                                               \
  static void test_##name();                                                     \
  static const ::kvstore::testing::Register register_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) ::kvstore::testing::fail(__FILE__, __LINE__, #condition); \
  } while (0)
#define CHECK_EQ(a, b)                                                                                       \
  do {                                                                                                       \
    const auto check_a = (a); /* a copy: it may come out of a temporary */                                   \
    const auto check_b = (b);                                                                                \
    if (!(check_a == check_b))                                                                               \
      ::kvstore::testing::fail(__FILE__, __LINE__,                                                           \
                               std::string(#a " == " #b ": ") + ::kvstore::testing::show(check_a) + " vs " + \
                                   ::kvstore::testing::show(check_b));                                       \
  } while (0)
#define CHECK_THROWS(expression, Exception)                                                  \
  do {                                                                                       \
    bool check_thrown = false;                                                               \
    try {                                                                                    \
      (void)(expression);                                                                    \
    } catch (const Exception&) {                                                             \
      check_thrown = true;                                                                   \
    }                                                                                        \
    if (!check_thrown)                                                                       \
      ::kvstore::testing::fail(__FILE__, __LINE__, #expression " should throw " #Exception); \
  } while (0)
#define TEST_MAIN() \
  int main() { return ::kvstore::testing::run_all(); }
