// A worker's mini-batch of scripted stages, for weft.pipe._workers: it runs without the GIL, which
// is taken only for a value that needs Python.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::pipe {

// Called once, when weft._C is imported.
void bindWorkerRun(pybind11::module_& pipe);

}  // namespace weft::pipe
