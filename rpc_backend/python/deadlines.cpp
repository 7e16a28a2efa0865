// What a function that runs for a peer may ask about its call (weft/deadlines.py), and what its
// callbacks keep of it (weft/_torch/patches/futures.py).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <utility>

#include "rpc_backend/core/call_context.h"
#include "rpc_backend/python/bindings.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

// The callback, which runs with the deadline of the call in which this is made, or with none:
// whoever completes its future has a call of its own.
py::cpp_function withDeadlineOfThisCall(py::function callback) {
  return
      [registered = CallbackContext(), callback = std::move(callback)](const py::object& future) {
        if (registered.isCurrent()) return callback(future);
        const CallContext own(registered.deadline());
        const CallScope scope(own.hasDeadline() ? &own : nullptr);
        return callback(future);
      };
}

}  // namespace

void bindDeadlines(py::module_& module) {
  module.def("_deadline", &secondsLeft, "See weft.deadline().");
  module.def("_cancelled", &isCancelled, "See weft.cancelled().");
  module.def(
      "_with_deadline_of_this_call", &withDeadlineOfThisCall, py::arg("callback"),
      "The callback of a future, which runs with the deadline of the call that registers it.");
}

}  // namespace weft::rpc
