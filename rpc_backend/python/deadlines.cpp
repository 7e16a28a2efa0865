// What a function that runs for a peer may ask about its call (weft/deadlines.py).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "rpc_backend/core/call_context.h"
#include "rpc_backend/python/bindings.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

std::optional<double> secondsLeft() {
  const CallContext* const call = CallContext::current();
  if (call == nullptr || !call->hasDeadline()) return std::nullopt;
  const std::chrono::duration<double> left = call->deadline() - CallContext::Clock::now();
  return std::max(0.0, left.count());
}

bool isCancelled() {
  const CallContext* const call = CallContext::current();
  return call != nullptr && call->isCancelled();
}

}  // namespace

void bindDeadlines(py::module_& module) {
  module.def("_deadline", &secondsLeft, "See weft.deadline().");
  module.def("_cancelled", &isCancelled, "See weft.cancelled().");
}

}  // namespace weft::rpc
