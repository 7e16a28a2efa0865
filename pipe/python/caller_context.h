// The context variables (Python's contextvars) of the thread that calls a Pipe, for its stages on
// whatever thread they run. They travel as a Python object of at::ThreadLocalState, and with
// SavedThreadState to recomputations.
//
// Threads: any, with the GIL.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>
#include <pybind11/pybind11.h>

namespace weft::pipe {

// While it lives, the stages that are called from this thread have the variables that it has now.
class CallerContext {
 public:
  CallerContext();
  ~CallerContext();
  CallerContext(const CallerContext&) = delete;
  CallerContext& operator=(const CallerContext&) = delete;

 private:
  const at::impl::ThreadLocalPythonObjects before_;
};

// While it lives, this thread has those variables. What a stage sets in them ends with its run: no
// other run could see it in the same way on every thread.
class StageVariables {
 public:
  StageVariables();
  ~StageVariables();
  StageVariables(const StageVariables&) = delete;
  StageVariables& operator=(const StageVariables&) = delete;

 private:
  pybind11::object context_;
};

}  // namespace weft::pipe
