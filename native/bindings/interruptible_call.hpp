// A call of the client without the GIL, that a signal handler's exception or the exit of the process can end.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <type_traits>

#include "base/cancellation.hpp"
#include "base/deadline.hpp"
#include "released_gil.hpp"

namespace kvstore {

// Python runs signal handlers on its main thread alone, and only when that comes back to it: while it waits in here it looks for
// them now and then. Once the object is gone, raise_if_interrupted() passes on what a handler raised.
// It is none of the running calls any more before it asks for the GIL: the exit of the process waits for them.
class InterruptibleCall : private ReleasedGil, public Cancellation {
 public:
  InterruptibleCall() : Cancellation(::syscall(SYS_gettid) == ::getpid()) {}

  static void raise_if_interrupted() {
    if (PyErr_Occurred() != nullptr) throw nanobind::python_error();
  }

 private:
  bool look() noexcept override {
    const Held gil(*this);
    return PyErr_CheckSignals() != 0;  // the exception stays with this thread's state
  }
};

// Runs the work so, and returns what it does.
template <typename Work>
auto interruptibly(const Deadline& deadline, Work&& work) {
  using Result = decltype(work(deadline));
  if constexpr (std::is_void_v<Result>) {
    {
      InterruptibleCall call;
      work(deadline.of(call));
    }
    InterruptibleCall::raise_if_interrupted();
  } else {
    Result result = [&] {
      InterruptibleCall call;
      return work(deadline.of(call));
    }();
    InterruptibleCall::raise_if_interrupted();
    return result;
  }
}

}  // namespace kvstore
