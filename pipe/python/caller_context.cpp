#include "pipe/python/caller_context.h"

#include <c10/core/SafePyObject.h>
#include <torch/csrc/PyInterpreter.h>

#include <memory>

namespace weft::pipe {

namespace py = pybind11;

namespace {

using at::impl::ThreadLocalPythonObjects;

constexpr const char* kKey = "weft.pipe.context";

}  // namespace

CallerContext::CallerContext() : before_(ThreadLocalPythonObjects::get_state()) {
  PyObject* const context = PyContext_CopyCurrent();
  if (context == nullptr) throw py::error_already_set();
  ThreadLocalPythonObjects::set(kKey,
                                std::make_shared<c10::SafePyObject>(context, getPyInterpreter()));
}

CallerContext::~CallerContext() { ThreadLocalPythonObjects::set_state(before_); }

StageVariables::StageVariables() {
  if (!ThreadLocalPythonObjects::contains(kKey)) return;
  // Several threads cannot be in one context at once.
  const auto& callers = ThreadLocalPythonObjects::get(kKey);
  context_ = py::reinterpret_steal<py::object>(PyContext_Copy(callers->ptr(getPyInterpreter())));
  if (!context_ || PyContext_Enter(context_.ptr()) != 0) throw py::error_already_set();
}

StageVariables::~StageVariables() {
  if (!context_) return;
  const py::error_scope error;  // what the run raised stays
  if (PyContext_Exit(context_.ptr()) != 0) PyErr_Clear();
}

}  // namespace weft::pipe
