// What a function that runs for a peer may ask about its call (weft/deadlines.py).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "rpc_backend/core/call_context.h"
#include "rpc_backend/python/bindings.h"

namespace py = pybind11;

namespace weft::rpc {

void bindDeadlines(py::module_& module) {
  module.def("_deadline", &secondsLeft, "See weft.deadline().");
  module.def("_cancelled", &isCancelled, "See weft.cancelled().");
}

}  // namespace weft::rpc
