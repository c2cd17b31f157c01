// Runs a target without libFuzzer: so many inputs, the same on every machine; any C++ compiler will do.
//
//   fuzz_<name> [--runs N] [--seed S]   the target's seeds, then N inputs made of them
//   fuzz_<name> FILE...                 these inputs, for a look at a finding
//   fuzz_<name> --write-seeds DIR       the seeds as files, for libFuzzer to begin with
//
// A finding ends the process: its input is in a file then, whose name is printed with how to replay it.
#include <unistd.h>

#include <csignal>
#include <iterator>

#include "mutator.hpp"

namespace kvstore::fuzz {
namespace {

constexpr unsigned kInputSecondsMax = 60;  // of one input; all but a few take microseconds

const char* program = "";
const uint8_t* current = nullptr;
size_t current_bytes = 0;

// Async-signal-safe but for the formatting, in a process that is over anyway.
void keep_input() {
  if (current == nullptr) return;
  const uint8_t* const input = current;
  current = nullptr;
  const std::string path = "finding-" + std::to_string(::getpid()) + ".bin";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(input), static_cast<std::streamsize>(current_bytes));
  std::fprintf(stderr, "the input is in %s; again: %s %s\nits bytes: ", path.c_str(), program, path.c_str());
  for (size_t i = 0; i < current_bytes; ++i) std::fprintf(stderr, "%02x", input[i]);
  std::fprintf(stderr, "\n");
}

void on_signal(int signal) {
  if (signal == SIGALRM) std::fprintf(stderr, "an input took over %u s\n", kInputSecondsMax);
  keep_input();
  ::_exit(1);
}

void run(const Bytes& input) {
  // A copy of exactly its size: a byte read behind it is seen.
  const Bytes exact(input);
  current = exact.data();
  current_bytes = exact.size();
  ::alarm(kInputSecondsMax);
  fuzz_one(exact.data(), exact.size());
  ::alarm(0);
  current = nullptr;
}

Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "can't read %s\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

int run_all(int argc, char** argv) {
  uint64_t runs = 1000, seed = 1;
  std::vector<std::string> files;
  const std::vector<Seed> begin_with = seeds();
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = argument == "--runs" || argument == "--seed" || argument == "--write-seeds";
    if (has_value && i + 1 == argc) {
      std::fprintf(stderr, "%s needs a value\n", argument.c_str());
      return 2;
    }
    if (argument == "--runs") {
      runs = std::stoull(argv[++i]);
    } else if (argument == "--seed") {
      seed = std::stoull(argv[++i]);
    } else if (argument == "--write-seeds") {
      const std::string directory = argv[++i];
      for (const Seed& each : begin_with)
        std::ofstream(directory + "/" + each.name, std::ios::binary)
            .write(reinterpret_cast<const char*>(each.bytes.data()),
                   static_cast<std::streamsize>(each.bytes.size()));
      return 0;
    } else {
      files.push_back(argument);
    }
  }
  for (const std::string& path : files) run(read_file(path));
  if (!files.empty()) return 0;
  std::vector<Bytes> corpus;
  for (const Seed& each : begin_with) {
    run(each.bytes);
    corpus.push_back(each.bytes);
  }
  run({});
  corpus.emplace_back();
  Mutator mutator(std::move(corpus), seed);
  for (uint64_t i = 0; i < runs; ++i) run(mutator.next());
  std::printf("%zu seeds and %llu inputs made of them (--seed %llu)\n", begin_with.size(),
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(seed));
  return 0;
}

}  // namespace
}  // namespace kvstore::fuzz

extern "C" {
// A build with a sanitizer has it; called before a report ends the process.
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
// Nothing that an input says may make the code under test ask for more memory than this at a time.
const char* __asan_default_options() { return "max_allocation_size_mb=512:detect_leaks=1"; }
}

int main(int argc, char** argv) {
  using namespace kvstore::fuzz;
  program = argv[0];
  std::signal(SIGABRT, on_signal);
  std::signal(SIGALRM, on_signal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_input);
  return run_all(argc, argv);
}
