// Gives up the GIL for a scope, also in a thread that finds Python gone when it comes back.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace kvstore {

// A daemon thread that wants the GIL back once the interpreter is shutting down is ended by pthread_exit(): an unwinding that must
// not meet a destructor, where it ends the process by SIGABRT. Such a thread stays here instead, until the process has exited.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() { take(); }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

  // Has the GIL for a moment in between.
  class Held {
   public:
    explicit Held(ReleasedGil& released) : released_(released) { released_.take(); }
    ~Held() { released_.state_ = PyEval_SaveThread(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    ReleasedGil& released_;
  };

 private:
  void take() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      for (;;) ::pause();
    }
  }

  PyThreadState* state_;
};

}  // namespace kvstore
